/** What this browser keeps for the pages of this server: values by name, and whether they are light or dark. */
export type Theme = "system" | "light" | "dark";

/** Browsers may refuse storage; the pages work without. */
export function stored(name: string): string | null {
  try {
    return localStorage.getItem(`onward-${name}`);
  } catch {
    return null;
  }
}

export function store(name: string, value: string): void {
  try {
    localStorage.setItem(`onward-${name}`, value);
  } catch {
    // private windows
  }
}

export function storedTheme(): Theme {
  const kept = stored("theme");
  return kept === "light" || kept === "dark" ? kept : "system";
}

/** Shows this page in a theme. */
export function showTheme(theme: Theme): void {
  document.documentElement.dataset.theme = theme;
}
