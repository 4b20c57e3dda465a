// Chromium keeps the empty boxes that it drew for Chinese while the book's font was on its way, and chooses fonts anew
// only for another language. With a Chinese font of the reader's own nothing is loaded, and no more than that changes.
addEventListener("load", async () => {
  await document.fonts.ready;
  document.documentElement.lang = "en-US";
});
