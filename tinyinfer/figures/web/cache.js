// A generation, pass by pass: with nothing kept beside keys and values kept, or prefill beside decode.
(() => {
  "use strict";
  const { make, table, short, widgets } = window.tinyinfer;
  const [UNSEEN, AGAIN] = [0, 1];

  widgets.cache = (stage, { tokens, grid, models, focus }) => {
    let [model, now] = [0, 0];
    const [status, result] = [make("p", { "aria-live": "polite" }), make("div")];
    const last = grid.length - 1;
    const go = (pass) => {
      now = Math.min(Math.max(pass, 0), last);
      slider.value = now + 1;
      [back.ariaDisabled, next.ariaDisabled] = [now === 0, now === last];
      draw();
    };
    const slider = make("input", {
      type: "range",
      min: 1,
      max: last + 1,
      value: 1,
      oninput: () => go(Number(slider.value) - 1),
    });
    const back = make("button", { type: "button", onclick: () => go(now - 1) }, "Back");
    const next = make("button", { type: "button", onclick: () => go(now + 1) }, "Next pass");
    const select = make(
      "select",
      { onchange: () => ((model = select.selectedIndex), draw()) },
      ...models.map(({ name }) => make("option", {}, name)),
    );

    const rows = (count) => `${count} ${count === 1 ? "row" : "rows"}`;

    const strip = (title, words, past) => {
      const cells = grid[now].map((state, place) => {
        const kind = state === UNSEEN ? "unseen" : state === AGAIN ? past : "written";
        return make("span", { class: kind }, state === UNSEEN ? "" : tokens[place]);
      });
      return [make("p", {}, `${title}: ${words}`), make("div", { class: "strip", "aria-hidden": "true" }, ...cells)];
    };

    const saved = (pass) => {
      const past = pass.seen - pass.reads;
      return [
        ...strip("Nothing kept", `${rows(pass.seen)} of K and V made, ${past} of them again (striped)`, "again"),
        ...strip("Keys and values kept", `${rows(pass.reads)} made (filled), ${past} only read (underlined)`, "kept"),
        table(
          ["", "nothing kept", "K and V kept"],
          [
            ["rows made so far", pass.naive_rows_so_far, pass.cached_rows_so_far],
            ["FLOPs of this pass", short(pass.naive_flops), short(pass.flops)],
            ["FLOPs so far", short(pass.naive_flops_so_far), short(pass.flops_so_far)],
            ["bytes moved so far", short(pass.naive_bytes_so_far), short(pass.bytes_so_far)],
            ["cache, bytes", "0", short(pass.bytes_held)],
          ],
        ),
      ];
    };

    const phases = (pass, first) => {
      const past = pass.seen - pass.reads;
      const column = (name) => (now === 0 ? [short(first[name]), "–"] : [short(first[name]), short(pass[name])]);
      return [
        ...strip("The cache", `${rows(pass.reads)} written (filled), ${past} only read (underlined)`, "kept"),
        table(
          ["", "pass 1: prefill", now === 0 ? "decode: next pass" : `pass ${now + 1}: decode`],
          [
            ["tokens read", ...column("reads")],
            ["FLOPs", ...column("flops")],
            ["bytes moved", ...column("bytes_moved")],
            ["FLOP per byte", ...column("intensity")],
            ["cache, bytes", ...column("bytes_held")],
          ],
        ),
      ];
    };

    function draw() {
      const [pass, first] = [models[model].passes[now], models[model].passes[0]];
      const read = tokens.slice(pass.seen - pass.reads, pass.seen).join("");
      const name = now === 0 ? "prefill" : `decode step ${now}`;
      status.textContent = `Pass ${now + 1} of ${last + 1}, ${name}: reads ${read}, answers ${tokens[pass.seen]}`;
      result.replaceChildren(...(focus === "phases" ? phases : saved)(pass, first));
    }

    stage.append(
      make(
        "div",
        { class: "controls" },
        back,
        next,
        make("label", { class: "wide" }, "Pass ", slider),
        make("label", {}, "Model ", select),
      ),
      status,
      result,
    );
    go(0);
  };
})();
