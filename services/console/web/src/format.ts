// Values as people read them, by what their keys say they are (as `strata` prints them).
import { language, text } from "./texts";
import type { Value } from "./api";

const SIZES = ["KiB", "MiB", "GiB", "TiB"];
const UNITS: [string, number][] = [
  ["d", 86_400_000],
  ["h", 3_600_000],
  ["m", 60_000],
  ["s", 1_000],
];
const FIRST_TIME_MS = 100_000_000_000;

export function size(bytes: number): string {
  if (Math.abs(bytes) < 1024) return `${bytes} B`;
  let power = -1;
  let left = bytes;
  while (Math.abs(left) >= 1024 && power < SIZES.length - 1) {
    left /= 1024;
    power += 1;
  }
  return `${left.toFixed(1)} ${SIZES[power]}`;
}

export function count(value: number): string {
  return value.toLocaleString(language() === "zh" ? "zh-CN" : "en-GB");
}

export function duration(ms: number): string {
  for (const [unit, length] of UNITS) {
    if (ms >= length) {
      const number = ms / length;
      return `${Number.isInteger(number) ? number : number.toFixed(1)}${unit}`;
    }
  }
  return `${Math.round(ms)}ms`;
}

export function time(ms: number): string {
  return new Date(ms).toISOString().replace("T", " ").replace("Z", "");
}

/** How long ago a time was. */
export function age(ms: number | null | undefined): string {
  return ms ? duration(Math.max(0, Date.now() - ms)) : "-";
}

export function readable(key: string, value: Value | undefined): string {
  if (value === null || value === undefined || value === "") return "-";
  if (typeof value === "boolean") return text(value ? "word.yes" : "word.no");
  if (typeof value === "number") {
    if (key.endsWith("_ms")) return value > FIRST_TIME_MS ? time(value) : value ? duration(value) : "-";
    if (key.endsWith("_bytes") || key === "bytes") return size(value);
    if (key.endsWith("bytes_per_s")) return `${size(value)}/s`;
    return Number.isInteger(value) ? count(value) : String(Number(value.toPrecision(6)));
  }
  if (Array.isArray(value)) return value.map((each) => readable(key, each)).join(", ") || "-";
  if (typeof value === "object")
    return (
      Object.entries(value)
        .map(([name, each]) => `${name}=${readable(name, each)}`)
        .join(", ") || "-"
    );
  return value;
}

export function bytesOf(base64: string): Uint8Array {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}

/** Bytes as offsets, hexadecimal digits and characters. */
export function hexDump(bytes: Uint8Array): string {
  const lines: string[] = [];
  for (let start = 0; start < bytes.length; start += 16) {
    const part = [...bytes.subarray(start, start + 16)];
    const hex = part.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const plain = part.map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : "."));
    lines.push(`${start.toString(16).padStart(8, "0")}  ${hex.padEnd(47)}  ${plain.join("")}`);
  }
  return lines.join("\n");
}

export function prettyJson(body: string): string | null {
  try {
    return JSON.stringify(JSON.parse(body), null, 2);
  } catch {
    return null;
  }
}
