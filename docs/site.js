// A table that is wider than the page scrolls: the keyboard must reach it. The theme wraps tables after it has loaded.
new MutationObserver(() => {
  for (const each of document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])")) each.tabIndex = 0;
}).observe(document.body, { childList: true, subtree: true });

// Code in a sentence or a cell breaks between words only, and a long name after one of its separators.
const texts = [];
for (const code of document.querySelectorAll(".md-typeset :not(pre) > code")) {
  const walker = document.createTreeWalker(code, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) texts.push(walker.currentNode);
}
for (const text of texts) {
  for (const part of text.data.split(/(\s+)/)) text.before(...(part.trim() ? word(part) : [part]));
  text.remove();
}

function word(text) {
  const longest = document.getElementById("feature-table") ? 12 : 28; // its columns are narrow
  const pieces = text.length > longest ? text.split(/(?<=[/_.:,=(])(?=[^/_.:,=(])/) : [text];
  const spans = pieces.map((piece) => Object.assign(document.createElement("span"), { className: "word", textContent: piece }));
  return spans.flatMap((span, at) => (at ? [document.createElement("wbr"), span] : [span]));
}
