// Chromium keeps the empty boxes that it drew for a widget's Chinese while the font was on its way; laying the widget out
// again redraws them. Without a widget, or with a Chinese font of the reader's own, this changes nothing.
document.fonts.load('1em "Tiny Hanzi"', "白").then(() => {
  for (const figure of document.querySelectorAll("figure.tinyinfer-widget")) {
    figure.style.display = "none";
    void figure.offsetHeight;
    figure.style.display = "";
  }
});
