/** Numbers as people read them. */

/** Returns a positive number with three significant digits, as many as needed before the point. */
export function threeDigits(value: number): string {
  return value >= 100 ? Math.round(value).toLocaleString("en") : value.toPrecision(3);
}
