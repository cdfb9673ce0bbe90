// What a page does beyond being read: tables sort by a click or a key, points of charts say what they are.
"use strict";

// "1,234.5 ± 0.2†" sorts as 1234.5, "inf" behind all numbers; what stands for no number comes last in either direction.
const numberOf = (text) => {
  if (/^inf\b/.test(text)) return Infinity;
  return /^[-−]?[\d,.]+/.test(text) ? parseFloat(text.replaceAll(",", "").replace("−", "-")) : NaN;
};
const isMissing = (text) => text === "" || text === "–" || /^nan\b/.test(text);

function sortBy(table, column, direction) {
  const rows = [...table.tBodies[0].rows];
  const texts = new Map(rows.map((row) => [row, row.cells[column].textContent.trim()]));
  const present = [...texts.values()].filter((text) => !isMissing(text));
  const numeric = present.length > 0 && present.every((text) => !Number.isNaN(numberOf(text)));
  rows.sort((one, other) => {
    const [a, b] = [texts.get(one), texts.get(other)];
    if (isMissing(a) || isMissing(b)) return isMissing(a) - isMissing(b);
    return direction * (numeric ? Math.sign(numberOf(a) - numberOf(b)) || 0 : a.localeCompare(b));
  });
  table.tBodies[0].append(...rows);
}

for (const table of document.querySelectorAll("table")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    if (!button.textContent.trim()) button.setAttribute("aria-label", "row");
    head.append(button);
    button.addEventListener("click", () => {
      const ascending = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      sortBy(table, column, ascending ? 1 : -1);
    });
  });
}

const tip = document.createElement("div");
tip.id = "tip";
tip.hidden = true;
tip.setAttribute("aria-hidden", "true");
document.body.append(tip);

// Without this script a point has its title, which browsers show late; here it is shown at once.
for (const title of document.querySelectorAll("svg g.points title")) {
  const point = title.parentNode;
  point.dataset.tip = title.textContent;
  title.remove();
}
document.addEventListener("pointerover", (event) => {
  const text = event.target.closest?.("[data-tip]")?.dataset.tip;
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 12, innerWidth - width - 4))}px`;
  tip.style.top = `${Math.max(4, event.clientY - height - 12)}px`;
});
