// What all widgets share. Each widget's output carries this part; the first one on a page defines it.
window.tinyinfer = window.tinyinfer || (() => {
  "use strict";

  // make("td", { class: "masked" }, "text", anotherElement)
  const make = (name, attributes = {}, ...children) => {
    const element = name.append ? name : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
      else if (value !== false) element.setAttribute(key, value);
    }
    element.append(...children);
    return element;
  };

  const row = (cells, isHead) => {
    const [first, ...others] = cells;
    const one = (name, scope, cell) =>
      cell instanceof Element ? cell : make(name, scope ? { scope } : {}, cell);
    const name = isHead ? "th" : "td";
    const corner = first === "" ? make("td") : one("th", isHead ? "col" : "row", first);
    return make("tr", {}, corner, ...others.map((cell) => one(name, isHead && "col", cell)));
  };

  const table = (head, rows) =>
    make("table", {}, make("thead", {}, row(head, true)), make("tbody", {}, ...rows.map((cells) => row(cells))));

  // 6144 -> "6,144"; 8873984 -> "8.87 M". Python's `short` says the same.
  const short = (number) => {
    if (Number.isInteger(number) && number < 1e5) return number.toLocaleString("en-US");
    let power = 0;
    while (Number(number.toPrecision(3)) >= 1000) [number, power] = [number / 1000, power + 1];
    return number.toPrecision(3) + ["", " k", " M", " G", " T", " P", " E"][power];
  };

  // At most so many digits after the point, and a minus sign as wide as a plus.
  const digits = (number, places) =>
    (number === -Infinity ? "−∞" : String(Number(number.toFixed(places)))).replace("-", "−");

  const widgets = {};

  // Called by the script inside the widget's own figure, so that no widget has to be searched for.
  const start = (name) => {
    const figure = document.currentScript.closest("figure");
    const data = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
    const stage = figure.querySelector(".stage");
    stage.replaceChildren();
    widgets[name](stage, data, figure.id);
  };

  return { make, table, short, digits, widgets, start };
})();
