/** The server's folder: scripts lie in `playground/` below it, also behind a proxy that adds a prefix. */
export const BASE = new URL(/* @vite-ignore */ "../", import.meta.url).href;
