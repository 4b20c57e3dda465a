// The roofline as a picture: the roof of one device, and a mark for each phase.
(() => {
  "use strict";
  const { make, withPrefix } = window.tinyinfer;

  const draw = (name, ...others) => make(document.createElementNS("http://www.w3.org/2000/svg", name), ...others);

  // 0.1, 1, 10, 100, 1 k, 10 k, ...
  const decade = (value) => {
    const power = Math.round(Math.log10(value));
    if (power < 0) return String(value);
    return 10 ** (power % 3) + ["", " k", " M", " G", " T", " P"][Math.floor(power / 3)];
  };

  // Write each phase's name where it covers neither a text, a line nor a mark. The picture must be in the page by then.
  const placeNames = (svg, marks, names, lines, [left, top, right, bottom]) => {
    const around = (across, down, wide, high = wide) => [across - wide, down - high, across + wide, down + high];
    const boxOf = ({ x, y, width, height }) => around(x + width / 2, y + height / 2, width / 2, height / 2);
    const named = marks.map(([name]) =>
      svg.appendChild(draw("text", { "text-anchor": "middle", class: `name ${name}` }, name)),
    );
    const sizes = named.map((text) => text.getBBox()); // all sizes before any place: one layout, not one for each
    const taken = [...names.map((text) => boxOf(text.getBBox())), ...marks.map(([, ...place]) => around(...place, 10))];
    for (const [[fromX, fromY], [toX, toY]] of lines) {
      for (let part = 0; part <= 1; part += 0.02) {
        taken.push(around(fromX + part * (toX - fromX), fromY + part * (toY - fromY), 3));
      }
    }
    const meet = (one, other) => one[0] < other[2] && other[0] < one[2] && one[1] < other[3] && other[1] < one[3];
    const sides = [[0.6, 1], [0, 1], [1, 0], [-0.6, 1], [0, -1], [-1, 0], [0.6, -1], [-0.6, -1]];
    for (const [place, [, across, down]] of marks.entries()) {
      const [text, { width, height }] = [named[place], sizes[place]];
      let best = { faults: Infinity };
      for (const gap of [10, 18, 28, 40, 54]) {
        for (const [side, below] of sides) {
          const spot = [across + side * (gap + width / 2), down + below * (gap + height / 2)];
          const box = around(...spot, width / 2, height / 2);
          const outside = box[0] < left || box[1] < top || box[2] > right || box[3] > bottom;
          const faults = taken.filter((other) => meet(box, other)).length + (outside ? 999 : 0);
          if (faults < best.faults) best = { faults, spot, box };
        }
      }
      text.setAttribute("x", best.spot[0]);
      text.setAttribute("y", best.spot[1] + height * 0.3);
      taken.push(best.box);
    }
  };

  const drawRoofline = (width, limits, device, dtype, phases, words) => {
    const [left, right, top, bottom] = [46, width - 20, 26, Math.round(Math.min(380, 150 + width * 0.4))];
    const scale = ([low, high], from, to) => (value) => {
      const inside = Math.min(Math.max(value, low), high);
      return from + ((to - from) * Math.log10(inside / low)) / Math.log10(high / low);
    };
    const [x, y] = [scale(limits.intensity, left, right), scale(limits.rate, bottom, top)];
    const svg = draw("svg", { viewBox: `0 0 ${width} ${bottom + 44}`, role: "img", "aria-label": words });
    const line = (points, kind) => svg.append(draw("polyline", { points: points.join(" "), class: kind }));
    const write = (text, across, down, anchor = "start", kind = "") =>
      svg.appendChild(draw("text", { x: across, y: down, "text-anchor": anchor, class: kind }, text));

    for (let value = limits.intensity[0]; value < limits.intensity[1] * 1.1; value *= 10) {
      line([[x(value), top], [x(value), bottom]], "grid");
      write(decade(value), x(value), bottom + 17, "middle", "tick");
    }
    for (let value = limits.rate[0]; value < limits.rate[1] * 1.1; value *= 10) {
      line([[left, y(value)], [right, y(value)]], "grid");
      write(decade(value), left - 6, y(value) + 4, "end", "tick");
    }
    write("FLOP per second", 2, 14);
    write("FLOP per byte", right, bottom + 37, "end");

    const [bandwidth, peak] = [device.bytes_per_second, device.flops_per_second[dtype]];
    const ridge = peak && peak / bandwidth;
    const end = Math.min(ridge || Infinity, limits.rate[1] / bandwidth, limits.intensity[1]);
    const roof = [limits.intensity[0], end].map((value) => [x(value), y(value * bandwidth)]);
    const lines = [roof];
    line(peak ? [...roof, [right, y(peak)]] : roof, "roof");
    const names = [];
    if (peak) {
      lines.push([roof[1], [right, y(peak)]], [roof[1], [x(ridge), bottom]]);
      line(lines[2], "ridge");
      names.push(write(withPrefix(peak, "FLOP/s"), right, y(peak) - 13, "end"));
      const foot = `ridge: ${withPrefix(ridge, "").trim()}`;
      const after = x(ridge) + 6 + foot.length * 8 < width; // wider than any letter
      names.push(write(foot, x(ridge) + (after ? 6 : -6), bottom - 7, after ? "start" : "end"));
    }
    const beside = limits.intensity[0] * 10 ** (84 / (x(10) - x(1)));
    names.push(write(withPrefix(bandwidth, "B/s"), left + 72, y(beside * bandwidth) - 6, "end"));
    names.push(write(`${device.name}, ${dtype}`, left + 6, top + 14));

    const marks = phases.map(([name, { intensity, flops, seconds }]) => [name, x(intensity), y(flops / seconds)]);
    for (const [name, across, down] of marks) {
      const shape =
        name === "prefill"
          ? draw("path", { d: `M${across} ${down - 8}l8 14h-16z` })
          : draw("circle", { cx: across, cy: down, r: 7 });
      shape.setAttribute("class", `mark ${name}`);
      svg.append(shape);
    }
    return { svg, placeNames: () => placeNames(svg, marks, names, lines, [left, top, right, bottom]) };
  };

  Object.assign(window.tinyinfer, { drawRoofline });
})();
