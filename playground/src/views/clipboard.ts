/** Copies text; returns whether it worked. Browsers allow it only to pages of this machine or over HTTPS. */
export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
