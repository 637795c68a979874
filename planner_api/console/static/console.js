// What a page gains by a script: a theme to choose, numbers that stay fresh, plans to walk through. All of it reads
// what the page says anyway; without scripts nothing is missing but convenience.
"use strict";

function themeButton() {
  const button = document.getElementById("theme");
  if (!button) return;
  const show = () => { button.querySelector("span").textContent = theme(); };
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length];
    try { localStorage.setItem("theme", next); } catch { return; }
    applyTheme(next);
    show();
  });
  button.hidden = false;
  show();
}

// The page is its own interface: it is fetched again, and what is marked as live is replaced where it differs.
function keepFresh() {
  const marked = [...document.querySelectorAll("[data-live]")];
  if (!marked.length) return;
  const seconds = Math.min(...marked.map((element) => Number(element.dataset.live)));
  const button = document.createElement("button");
  button.type = "button";
  button.className = "quiet live";
  document.querySelector("main .head").append(button);
  const told = new Map(marked.map((element) => [element, element.innerHTML]));
  let paused = false;
  const show = () => {
    button.textContent = paused ? "Updates paused: resume" : "Live: pause updates";
    button.setAttribute("aria-pressed", String(paused));
  };
  button.addEventListener("click", () => { paused = !paused; show(); });
  show();
  const busy = (element) => element.contains(document.activeElement) || element.querySelector("details[open]");
  const update = async () => {
    if (paused || document.hidden) return;
    const answer = await fetch(location.href, { headers: { Accept: "text/html" }, redirect: "manual" });
    if (answer.type === "opaqueredirect") return location.reload(); // signed out meanwhile
    if (!answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const element of marked) {
      const other = fresh.getElementById(element.id);
      if (other && !busy(element) && other.innerHTML !== told.get(element)) {
        told.set(element, other.innerHTML);
        element.replaceChildren(...document.importNode(other, true).childNodes);
        element.dispatchEvent(new CustomEvent("fresh", { bubbles: true }));
      }
    }
  };
  setInterval(() => update().catch(() => {}), seconds * 1000);
}

// Says in each cell of a wide table which column it is of, for phones, where a row is shown as a paragraph. The roles
// say to a screen reader that it is a table still.
function nameColumns(table) {
  const heads = [...table.querySelectorAll("thead th")].map((head) => head.textContent.trim());
  if (heads.length < 4) return;
  table.classList.add("rows");
  const roles = { thead: "rowgroup", tbody: "rowgroup", tr: "row", td: "cell", "thead th": "columnheader", "tbody th": "rowheader" };
  table.setAttribute("role", "table");
  for (const [part, role] of Object.entries(roles)) {
    for (const element of table.querySelectorAll(part)) element.setAttribute("role", role);
  }
  for (const row of table.querySelectorAll("tbody tr")) {
    [...row.children].forEach((cell, column) => {
      if (cell.matches("td:not(.empty, :has(details))") && cell.textContent.trim()) cell.dataset.label = heads[column];
    });
  }
}

// A region that is wider than the page fades where it goes on, and a chart says so in words.
function hintAtMore(region) {
  const hint = region.closest(".gantt")?.querySelector(".hint");
  const look = () => {
    const more = region.scrollWidth - region.clientWidth - region.scrollLeft > 1;
    region.classList.toggle("more", more);
    if (hint) hint.hidden = !more;
  };
  region.addEventListener("scroll", look, { passive: true });
  const watcher = new ResizeObserver(look);
  watcher.observe(region);
  for (const child of region.children) watcher.observe(child);
}

// Where the browser gives no clipboard, as to a page without TLS, the text is chosen, to be copied by hand.
function copyButton(button) {
  const source = document.getElementById(button.dataset.copy);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(source.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(source);
      button.textContent = "Chosen: copy it now";
    }
  });
  button.hidden = false;
}

function walkThrough(chart) {
  const scroll = chart.querySelector(".scroll");
  const svg = chart.querySelector("svg");
  const told = chart.querySelector(".told");
  const steps = [...chart.querySelectorAll("rect.step[data-steps]")]
    .sort((one, other) => parseFloat(one.getAttribute("x")) - parseFloat(other.getAttribute("x")));
  let zoom = 1;
  let chosen = -1;
  const resize = (factor) => {
    const middle = (scroll.scrollLeft + scroll.clientWidth / 2) / zoom;
    zoom = Math.min(32, Math.max(1, zoom * factor));
    svg.style.setProperty("--zoom", zoom);
    scroll.scrollLeft = middle * zoom - scroll.clientWidth / 2;
  };
  // A label stands on a bar that is wide enough for it, with room before and behind.
  const labels = [...svg.querySelectorAll(".label")];
  const fit = () => {
    const fits = labels.map((label) => {
      const text = label.firstElementChild;
      return text.getComputedTextLength() + 2 * text.x.baseVal[0].value <= label.width.baseVal.value;
    });
    labels.forEach((label, number) => label.setAttribute("visibility", fits[number] ? "visible" : "hidden"));
  };
  const choose = (number) => {
    if (chosen >= 0) steps[chosen].classList.remove("chosen");
    chosen = Math.min(steps.length - 1, Math.max(0, number));
    const bar = steps[chosen];
    bar.classList.add("chosen");
    const first = bar.dataset.steps.split(" ")[0];
    const row = document.getElementById(`step-${first}`);
    const reason = row && row.querySelector(".reason");
    told.textContent = bar.querySelector("title").textContent + (reason ? `: ${reason.textContent}.` : ".");
    if (row) {
      const link = document.createElement("a");
      link.href = `#step-${first}`;
      link.textContent = "Show in the table";
      told.append(" ", link);
    }
    const box = bar.getBoundingClientRect();
    const frame = scroll.getBoundingClientRect();
    if (box.left < frame.left || box.right > frame.right) scroll.scrollLeft += box.left - frame.left - frame.width / 3;
  };
  for (const button of chart.querySelectorAll("button[data-zoom]")) {
    button.addEventListener("click", () => resize(button.dataset.zoom === "in" ? 2 : 0.5));
  }
  svg.addEventListener("click", (event) => {
    const number = steps.indexOf(event.target.closest("rect.step"));
    if (number >= 0) choose(number);
  });
  scroll.addEventListener("keydown", (event) => {
    const moves = { ArrowRight: chosen + 1, ArrowLeft: chosen - 1, Home: 0, End: steps.length - 1 };
    if (!(event.key in moves) || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    choose(moves[event.key]);
  });
  new ResizeObserver(fit).observe(svg);
  chart.querySelector(".zoom").hidden = false;
}

themeButton();
document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
keepFresh();
const nameAll = (part) => part.querySelectorAll("table.data").forEach(nameColumns);
document.addEventListener("fresh", (event) => nameAll(event.target.parentNode));
nameAll(document);
for (const chart of document.querySelectorAll(".gantt")) walkThrough(chart);
for (const button of document.querySelectorAll("button[data-copy]")) copyButton(button);
for (const region of document.querySelectorAll(".scroll")) hintAtMore(region);
document.addEventListener("fresh", (event) => event.target.querySelectorAll(".scroll").forEach(hintAtMore));
