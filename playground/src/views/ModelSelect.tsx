/** The models of the server, listed again whenever they are about to be looked at. */
import { models, refreshModels } from "../state/access";

interface Props {
  selected: string;
  onSelect: (name: string) => void;
}

export function ModelSelect({ selected, onSelect }: Props) {
  const refresh = () => void refreshModels();
  return (
    <select value={selected} onPointerDown={refresh} onFocus={refresh} onChange={(event) => onSelect(event.currentTarget.value)}>
      {models.value.length === 0 && <option value="">No model yet</option>}
      {models.value.map((name) => (
        <option key={name} value={name}>
          {name}
        </option>
      ))}
    </select>
  );
}
