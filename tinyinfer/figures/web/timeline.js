// A recorded request, played: what happens where, and which rows and tokens exist by then.
(() => {
  "use strict";
  const { make, table, widgets } = window.tinyinfer;
  const PLAYING = 12; // seconds for the whole request
  const STEPS = 200; // of the slider
  const milliseconds = (seconds) => `${(seconds * 1e3).toFixed(2)} ms`;
  const percent = (share) => `${(share * 100).toFixed(3)}%`;

  // The gaps of one run as dots, on axes that all runs share.
  const drawGaps = ({ last, longest }, run) => {
    const place = (share) => (1e3 * share).toFixed(1); // Firefox lengthens "h0" by a part of the unit
    const dots = run.gaps.map(([end, gap]) => `M${place(end / last)} ${place(1 - gap / longest)}h0`);
    const picture = make("div", { class: "gaps", role: "img", "aria-label": `Gaps against time. ${run.says}` });
    picture.innerHTML = `<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" aria-hidden="true"><path d="${dots.join("")}"/></svg>`;
    picture.append(...run.prompts.map((at) => make("span", { style: `left: ${percent(at / last)}` }, "▲")));
    return picture;
  };

  const showRuns = (axes, runs) => [
    make("p", {}, make("b", {}, "Answers under way. "), axes.says),
    ...runs.flatMap((run) => [make("p", {}, run.says), drawGaps(axes, run)]),
  ];

  widgets.timeline = (stage, { lanes, parts, tokens, runs, axes }) => {
    const total = parts.at(-1).end;
    const prompt = tokens.length - parts.at(-1).answer.length;
    const calm = matchMedia("(prefers-reduced-motion: reduce)");
    let [now, frame, before, still] = [0, 0, 0, false];
    const [status, result] = [make("p", { "aria-live": "polite" }), make("div")];
    const cells = tokens.map((token) => make("span", {}, token));
    const output = make("output", { "aria-live": "off" });

    const slider = make("input", {
      type: "range",
      min: 0,
      max: STEPS,
      oninput: () => (stop(), go(total * (slider.value / STEPS))),
    });
    const later = () => parts.find(({ start }) => start > now)?.start ?? total;
    const sooner = () => parts.findLast(({ start }) => start < now)?.start ?? 0;
    const button = (words, act) => make("button", { type: "button", onclick: act }, words);
    const play = button("Play", () => (frame ? stop() : begin()));
    const back = button("Back", () => (stop(), go(sooner())));
    const next = button("Next part", () => (stop(), go(later())));

    const stop = () => {
      (still ? clearTimeout : cancelAnimationFrame)(frame);
      frame = 0;
      play.textContent = "Play";
    };
    const begin = () => {
      still = calm.matches;
      if (now === total) go(0);
      play.textContent = "Pause";
      before = performance.now();
      wait();
    };
    // For readers who ask for less motion, from part to part.
    const wait = () => (frame = still ? setTimeout(() => move(later()), 1500) : requestAnimationFrame(flow));
    const flow = (moment) => {
      const passed = Math.max(0, moment - before) / 1000;
      before = moment;
      move(now + (total * passed) / PLAYING);
    };
    const move = (moment) => {
      go(moment);
      if (now < total) wait();
      else stop();
    };

    const bars = parts.map(({ kind, start, end }) => {
      const [left, width] = [percent(start / total), percent((end - start) / total)];
      return make("span", { class: kind, style: `left: ${left}; width: ${width}` });
    });
    const line = make("i", {});
    const tracks = lanes.map((lane) => {
      const own = bars.filter((_, place) => parts[place].lane === lane);
      return make("div", { class: "lane" }, make("b", {}, lane), make("div", { class: "track" }, ...own));
    });
    const picture = make("div", { class: "lanes", "aria-hidden": "true" }, ...tracks, make("div", { class: "now" }, line));

    function go(moment) {
      now = Math.min(Math.max(moment, 0), total);
      const done = parts.filter(({ end }) => end <= now);
      const [last, part] = [done.at(-1), parts[done.length]];
      const { answer = [], rows = 0, rows_there = 0, crossed_bytes = 0 } = last || {};
      slider.value = (now / total) * STEPS;
      output.textContent = milliseconds(now);
      slider.setAttribute("aria-valuetext", `${output.textContent}, ${part ? part.name : "finished"}`);
      [back.ariaDisabled, next.ariaDisabled] = [now === 0, now === total];
      line.style.left = percent(now / total);
      bars.forEach((bar, place) => bar.classList.toggle("active", place === done.length));
      cells.forEach((cell, place) => {
        const known = place < prompt + answer.length;
        cell.className = place < rows ? "written" : known ? "known" : "unseen";
        cell.textContent = known ? tokens[place] : "";
      });
      const text = part ? `${part.name}: ${part.says}.` : `Finished: ${answer.join("")} took ${milliseconds(total)}.`;
      if (status.textContent !== text) status.textContent = text;
      result.replaceChildren(
        table(
          ["", "so far"],
          [
            ["answer", answer.join("") || "–"],
            ["rows of K and V", rows],
            ["of them on the decode worker", rows_there],
            ["bytes that have crossed", crossed_bytes.toLocaleString("en-US")],
          ],
        ),
      );
    }

    stage.append(
      make("div", { class: "controls" }, play, back, next, make("label", { class: "wide" }, "Time ", slider), output),
      status,
      picture,
      make("div", { class: "strip", "aria-hidden": "true" }, ...cells),
      result,
      ...(runs.length ? showRuns(axes, runs) : []),
    );
    go(0);
  };
})();
