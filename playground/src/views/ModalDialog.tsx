/** A dialog over the page: the browser keeps the focus inside, and Escape closes it. */
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { dialog } from "../state/page";

interface Props {
  title: string;
  isWide?: boolean;
  children: ComponentChildren;
}

export function ModalDialog({ title, isWide = false, children }: Props) {
  const element = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => {
    element.current?.showModal();
  }, []);
  return (
    <dialog ref={element} class={isWide ? "wide" : ""} aria-labelledby="dialog-title" onClose={() => (dialog.value = null)} onClick={closeOnBackdrop}>
      <div class="dialog">
        <header>
          <h2 id="dialog-title">{title}</h2>
          <button type="button" aria-label="Close" onClick={() => element.current?.close()}>
            ×
          </button>
        </header>
        {children}
      </div>
    </dialog>
  );
}

function closeOnBackdrop(event: MouseEvent): void {
  if (event.target === event.currentTarget) (event.currentTarget as HTMLDialogElement).close();
}
