/** A button that opens a box over the page: the browser closes it at Escape, and when anything else is pressed. */
import type { ComponentChildren } from "preact";
import { useId, useRef } from "preact/hooks";

const GAP_PX = 6;

interface Props {
  label: string;
  /** What the button shows, where that is not the label. */
  face?: ComponentChildren;
  class?: string;
  children: ComponentChildren;
}

export function Menu({ label, face, class: name = "", children }: Props) {
  const id = useId();
  const button = useRef<HTMLButtonElement>(null);
  const box = useRef<HTMLDivElement>(null);
  const place = (event: ToggleEvent) => {
    const rectangle = button.current?.getBoundingClientRect();
    const style = box.current?.style;
    button.current?.setAttribute("aria-expanded", String(event.newState === "open"));
    if (!rectangle || !style) return;
    const isAbove = rectangle.top > innerHeight / 2;
    const isLeft = rectangle.left < innerWidth / 3;
    style.top = isAbove ? "auto" : `${rectangle.bottom + GAP_PX}px`;
    style.bottom = isAbove ? `${innerHeight - rectangle.top + GAP_PX}px` : "auto";
    style.left = isLeft ? `${Math.max(GAP_PX, rectangle.left)}px` : "auto";
    style.right = isLeft ? "auto" : `${Math.max(GAP_PX, innerWidth - rectangle.right)}px`;
  };
  const closeAfter = (event: MouseEvent) => {
    if ((event.target as HTMLElement).closest("button, a")) box.current?.hidePopover();
  };
  return (
    <>
      <button ref={button} type="button" class={name} aria-label={face === undefined ? undefined : label} title={face === undefined ? undefined : label} popovertarget={id}>
        {face ?? label}
      </button>
      <div ref={box} id={id} popover="auto" class="menu" role="group" aria-label={label} onBeforeToggle={place} onClick={closeAfter}>
        {children}
      </div>
    </>
  );
}
