/** Mounts the editor, connects it with the document, and finds the token under pointer, finger or cursor. */
import { useLayoutEffect, useRef } from "preact/hooks";
import { Editor } from "../editor/editor";
import { editorDiscarded, editorMounted, followPointer, leavePointer } from "../state/alternatives";
import { text, useEditor } from "../state/document";
import { shading } from "../state/page";
import { start } from "../state/start";
import { onContextMenu, touchCancel, touchDown, touchMove, touchUp } from "../state/touch";

export function DocumentEditor() {
  const parent = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    if (!parent.current) return;
    const editor = new Editor({
      parent: parent.current,
      nonce: start.nonce,
      label: "Document",
      onChange: () => {
        text.value = editor.text;
      },
    });
    useEditor(editor);
    editorMounted(editor);
    if (matchMedia("(pointer: fine)").matches) editor.focus(); // on a phone, the keyboard waits until it is wanted
    return () => {
      editorDiscarded();
      editor.destroy();
    };
  }, []);
  const move = (event: PointerEvent) => {
    followPointer(event);
    touchMove(event);
  };
  return (
    <div
      ref={parent}
      class={`editor shading-${shading.value}`}
      onPointerMove={move}
      onPointerLeave={leavePointer}
      onPointerDown={touchDown}
      onPointerUp={touchUp}
      onPointerCancel={touchCancel}
      onContextMenu={onContextMenu}
    />
  );
}
