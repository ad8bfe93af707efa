/** Mounts the editor, connects it with the document, and finds the token under pointer or cursor. */
import { useLayoutEffect, useRef } from "preact/hooks";
import { Editor } from "../editor/editor";
import { editorDiscarded, editorMounted, followPointer, leavePointer } from "../state/alternatives";
import { text, useEditor } from "../state/document";
import { shading } from "../state/page";
import { start } from "../state/start";

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
    editor.focus();
    return () => {
      editorDiscarded();
      editor.destroy();
    };
  }, []);
  return <div ref={parent} class={`editor shading-${shading.value}`} onPointerMove={followPointer} onPointerLeave={leavePointer} />;
}
