/** Tables for spreadsheets, which take text that begins with certain characters for a formula. */
export type Cell = string | number | null;

/** Returns rows as CSV. Text that would be a formula begins with an apostrophe, numbers never do; null is an empty cell. */
export function csv(rows: readonly (readonly Cell[])[]): string {
  return rows.map((row) => `${row.map(written).join(",")}\r\n`).join("");
}

function written(cell: Cell): string {
  if (typeof cell !== "string") return cell === null ? "" : String(cell);
  const safe = /^[=+\-@\t\r]/.test(cell) ? `'${cell}` : cell;
  return /[",\r\n]/.test(safe) || safe !== safe.trim() ? `"${safe.replaceAll('"', '""')}"` : safe;
}
