// All texts of the page in two catalogues with the same keys.
import english from "./en.json";
import chinese from "./zh.json";

export type Language = "en" | "zh";
const CATALOGUES: Record<Language, Record<string, string>> = { en: english, zh: chinese };

let current: Language = stored();

export function language(): Language {
  return current;
}

export function setLanguage(to: Language): void {
  current = to;
  localStorage.setItem("language", to);
  document.documentElement.lang = to === "zh" ? "zh-CN" : "en";
}

/** Return a text; words in braces are replaced. */
export function text(key: string, words: Record<string, string | number> = {}): string {
  const found = CATALOGUES[current][key] ?? key;
  return found.replace(/\{(\w+)\}/g, (_, name: string) => String(words[name] ?? ""));
}

/** Return the label of a column: the catalogue's, else the key without its unit. */
export function label(key: string): string {
  const found = CATALOGUES[current][`col.${key}`];
  return found ?? key.replace(/_(ms|bytes)$/, "").replace(/_/g, " ");
}

function stored(): Language {
  const found = localStorage.getItem("language");
  if (found === "en" || found === "zh") return found;
  return navigator.language.startsWith("zh") ? "zh" : "en";
}
