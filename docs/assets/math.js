// Draws the formulas that pymdownx.arithmatex marks, with the KaTeX beside this file.
for (const element of document.querySelectorAll(".arithmatex")) {
  katex.render(element.textContent.trim().slice(2, -2), element, {
    displayMode: element.tagName === "DIV",
    throwOnError: false,
  });
}
