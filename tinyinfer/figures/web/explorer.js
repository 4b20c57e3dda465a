// The roofline explorer: controls, the words about one state, and the page's address.
(() => {
  "use strict";
  const { make, table, widgets, drawRoofline, bytesOf, memoryNeeded, count, plain, withPrefix } = window.tinyinfer;
  const { predictPrefill, predictDecode, largestBatch, criticalBatch } = window.tinyinfer;

  const offered = (device) => {
    const known = Object.keys(device.flops_per_second);
    return known.length ? known : Object.keys(bytesOf);
  };
  // The dtype that was asked for, or of those that the device has the one nearest in size.
  const nearestDtype = (device, wanted) => {
    const distance = (dtype) => (dtype === wanted ? -1 : Math.abs(bytesOf[dtype] - bytesOf[wanted]));
    return offered(device).reduce((best, dtype) => (distance(dtype) < distance(best) ? dtype : best));
  };

  const describeRoom = ({ memory_bytes: size }, { together }) => {
    if (size === null) return `${withPrefix(together, "B")} needed, size unknown`;
    const left = size - together;
    const verdict = left >= 0 ? `fits, ${withPrefix(left, "B")} left` : `does not fit, ${withPrefix(-left, "B")} short`;
    return `${verdict} of ${withPrefix(size, "B")}`;
  };

  // All that is shown of one state, as Python's `summarise` and `explored_rows` say it.
  const explore = (model, device, { dtype, batch, prompt, context }) => {
    const prefill = predictPrefill(model, device, dtype, prompt, batch);
    const decode = predictDecode(model, device, dtype, context, batch);
    const rows = Math.max(prompt, context);
    const memory = memoryNeeded(model, bytesOf[dtype], batch, rows);
    const fitting = largestBatch(model, device, dtype, rows);
    const critical = criticalBatch(model, device, dtype, context);
    const [ttft, tpot] = [withPrefix(prefill.seconds, "s"), withPrefix(decode.seconds, "s")];
    const known = device.flops_per_second[dtype];
    return {
      prefill,
      decode,
      summary:
        `${model.name} in ${dtype} on ${device.name}, batch ${count(batch)}: ` +
        `prefill of ${count(prompt)} ${prompt === 1 ? "token" : "tokens"} is ${prefill.bound}-bound, ` +
        `TTFT at least ${ttft}; ` +
        `a decode step at context ${count(context)} is ${decode.bound}-bound, TPOT at least ${tpot}; ` +
        `memory: ${describeRoom(device, memory)}.`,
      rows: [
        ["time, at least", `TTFT ${ttft}`, `TPOT ${tpot}`],
        ["limit that binds", prefill.bound, decode.bound],
        ["tokens/s, at most", plain(prefill.tokensPerSecond), plain(decode.tokensPerSecond)],
        ["FLOP per byte", plain(prefill.intensity), plain(decode.intensity)],
        ["weights + KV cache", `${withPrefix(memory.weights, "B")} + ${withPrefix(memory.cache, "B")}`],
        ["do they fit?", describeRoom(device, memory)],
        ["largest batch that fits", fitting === null ? "unknown" : count(fitting)],
        [
          "decode is compute-bound",
          !known ? "unknown, no FLOP/s published" : critical === null ? "at no batch" : `from batch ${count(critical)}`,
        ],
      ],
    };
  };

  window.tinyinfer.explore = explore;

  const fields = ["model", "gpu", "dtype", "batch", "prompt", "context"];

  // "#model=...&batch=8" -> the choice that it names, and a sentence about each part that names nothing.
  const readFragment = (fragment, { models, devices, largest, start }) => {
    const [choice, refused] = [{ ...start }, []];
    const same = (one, other) => one.toLowerCase() === other.toLowerCase();
    const among = { model: models, gpu: devices, dtype: Object.keys(bytesOf).map((name) => ({ name })) };
    for (const [name, value] of new URLSearchParams(fragment.slice(1))) {
      if (!fields.includes(name)) refused.push(`“${name}” is none of ${fields.join(", ")}`);
      else if (largest[name]) {
        const whole = /^\d{1,9}$/.test(value) ? Number(value) : 0;
        if (whole >= 1 && whole <= largest[name]) choice[name] = whole;
        else refused.push(`${name} “${value}” is no whole number from 1 to ${count(largest[name])}`);
      } else {
        const found = among[name].find((each) => same(each.name, value));
        if (found) choice[name] = found.name;
        else refused.push(`${name} “${value}” is not known`);
      }
    }
    return { choice, refused };
  };

  const writeFragment = (choice) => `#${fields.map((name) => `${name}=${encodeURIComponent(choice[name])}`).join("&")}`;

  // 1, 2, 3, 4, 6, 8, 12, ... up to the largest.
  const stepsTo = (largest) => {
    const steps = [1];
    for (let power = 2; power <= largest; power *= 2) steps.push(power, power * 1.5);
    return steps.filter((step) => step <= largest);
  };

  widgets.explorer = (stage, data, id) => {
    const { models, devices, limits, largest } = data;
    let [choice, refused, writing] = [{ ...data.start }, [], 0];
    let wanted = choice.dtype; // what was asked for, though a device may lack it
    const [status, picture] = [make("p", { "aria-live": "polite" }), make("div", { class: "roofline" })];
    const [result, notes] = [make("div", { class: "explored" }), make("ul", { class: "notes" })];
    const warning = make("p", { class: "refused", role: "status" });

    const keep = () => {
      clearTimeout(writing);
      history.replaceState(history.state, "", writeFragment(choice));
    };
    const set = (changes) => {
      refused = [];
      choice = { ...choice, ...changes };
      wanted = changes.dtype || wanted;
      show();
      clearTimeout(writing); // browsers allow an address to change a hundred times in some seconds, and no more
      writing = setTimeout(keep, 150);
    };

    const select = (name, words, options) => {
      const control = make("select", { onchange: () => set({ [name]: control.value }) });
      control.append(...options.map((value) => make("option", { value }, value)));
      return [control, make("label", {}, words, control)];
    };
    const [model, modelLabel] = select("model", "Model", models.map(({ name }) => name));
    const [gpu, gpuLabel] = select("gpu", "GPU", devices.map(({ name }) => name));
    const [dtype, dtypeLabel] = select("dtype", "Dtype", Object.keys(bytesOf));

    const slider = (name, words, unit) => {
      const steps = stepsTo(largest[name]);
      const control = make("input", {
        type: "range",
        id: `${id}-${name}`,
        min: 0,
        max: steps.length - 1,
        oninput: () => set({ [name]: steps[control.value] }),
      });
      const output = make("output", { for: control.id, "aria-live": "off" });
      const follow = () => {
        control.value = steps.findIndex((step) => step >= choice[name]);
        output.textContent = count(choice[name]);
        control.setAttribute("aria-valuetext", `${output.textContent} ${unit}${choice[name] > 1 ? "s" : ""}`);
      };
      return [follow, make("div", { class: "dial" }, make("label", { for: control.id }, words), control, output)];
    };
    const dials = [
      slider("batch", "Batch", "sequence"),
      slider("prompt", "Prompt", "token"),
      slider("context", "Context", "token"),
    ];

    const describeState = (shape, device, phases) => {
      const known = Object.keys(device.flops_per_second).length;
      const lacking = `No ${wanted} peak is known for ${device.name}, so this is ${choice.dtype}.`;
      const beyond = Math.max(choice.prompt, choice.context) > shape.max_context;
      return [
        wanted !== choice.dtype && `${lacking} Known: ${offered(device).join(", ")}.`,
        !known && `No FLOP/s is published for ${device.name}, so memory alone bounds the times.`,
        beyond && `${shape.name} was made for at most ${count(shape.max_context)} tokens.`,
        ...phases.map(([name, { intensity, flops, seconds }]) => {
          const inside = intensity <= limits.intensity[1] && flops / seconds <= limits.rate[1];
          const place = `${plain(intensity)} FLOP per byte and ${withPrefix(flops / seconds, "FLOP/s")}`;
          return !inside && `The ${name} mark stands at the edge of the picture; it belongs at ${place}.`;
        }),
        device.launch_floor_seconds
          ? `Each of ${count(phases[0][1].launches)} kernels takes ${withPrefix(device.launch_floor_seconds, "s")} to start.`
          : `Starting a kernel counts as 0 s: the launch floor of ${device.name} is not measured.`,
      ].filter(Boolean);
    };

    let width = 0;
    const measure = () => Math.max(280, Math.min(picture.clientWidth || 640, 760));
    function show() {
      const shape = models.find(({ name }) => name === choice.model);
      const device = devices.find(({ name }) => name === choice.gpu);
      choice.dtype = nearestDtype(device, wanted);
      [model.value, gpu.value] = [choice.model, choice.gpu];
      for (const option of dtype.options) option.disabled = !offered(device).includes(option.value);
      dtype.value = choice.dtype;
      for (const [follow] of dials) follow();

      const state = explore(shape, device, choice);
      status.textContent = state.summary;
      const phases = Object.entries({ prefill: state.prefill, decode: state.decode });
      const words = `Roofline of ${device.name} in ${choice.dtype}`;
      width = measure();
      const { svg, placeNames: finish } = drawRoofline(width, limits, device, choice.dtype, phases, words);
      picture.replaceChildren(svg);
      const rows = state.rows.map(([name, ...cells]) =>
        cells.length > 1 ? [name, ...cells] : [name, make("td", { colspan: 2 }, ...cells)],
      );
      result.replaceChildren(table(["", "prefill", "decode step"], rows));
      warning.textContent = refused.length ? `Ignored in the address: ${refused.join("; ")}.` : "";
      notes.replaceChildren(...describeState(shape, device, phases).map((words) => make("li", {}, words)));
      finish(); // last, since it asks for sizes
    }

    // An address without "#" is the start; a fragment without "=" leads to a heading, or to the top.
    const follow = () => {
      if (!/^[^#]*(#.*=.*)?$/.test(location.href)) return false;
      clearTimeout(writing);
      ({ choice, refused } = readFragment(location.hash, data));
      wanted = choice.dtype;
      show();
      return true;
    };
    const say = (words) => () => (copy.textContent = words);
    const onclick = async () => {
      keep();
      await navigator.clipboard.writeText(location.href).then(say("Copied"), say("Copy it from the address bar"));
      setTimeout(say("Copy link"), 2000);
    };
    const copy = make("button", { type: "button", onclick }, "Copy link");

    stage.append(
      make("div", { class: "controls choices" }, modelLabel, gpuLabel, dtypeLabel),
      ...dials.map(([, dial]) => dial),
      warning,
      status,
      picture,
      result,
      notes,
      ...(navigator.clipboard ? [copy] : []),
    );
    follow() || show();
    // Buttons in the text around name a state; links would, but the theme reads each link's fragment as a place.
    document.addEventListener("click", ({ target }) => {
      const button = target.closest("[data-explore]");
      if (button) location.hash = button.dataset.explore;
    });
    // By such a button, by a changed address or by the way back: show what it changes.
    const isState = (address) => /#.*=/.test(address);
    window.addEventListener("hashchange", ({ oldURL, newURL }) => {
      if ((isState(oldURL) || isState(newURL)) && follow()) stage.scrollIntoView();
    });
    new ResizeObserver(() => requestAnimationFrame(() => measure() !== width && show())).observe(picture);
  };
})();
