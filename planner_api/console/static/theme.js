// Before anything is drawn, so that a chosen theme never flashes into the other.
const THEMES = ["system", "light", "dark"];
function theme() {
  try {
    const kept = localStorage.getItem("theme");
    return THEMES.includes(kept) ? kept : "system";
  } catch {
    return "system"; // storage is switched off
  }
}
function applyTheme(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
}
applyTheme(theme());
