/** The part of a tree's drawing that belongs to one row: lines that pass, the way from the parent, and the node's dot. */
import { MAX_LANES, type GraphRow } from "../core/tree_graph";

const LANE_PX = 13;
const HEIGHT_PX = 34;
const MIDDLE = HEIGHT_PX / 2;

interface Props {
  row: GraphRow;
  path: ReadonlySet<number>;
  isCurrent: boolean;
}

export function TreeGraph({ row: { node, lane, open, parentLane, hasChildren }, path, isCurrent }: Props) {
  const isOnPath = path.has(node.id);
  const x = center(lane);
  const line = isOnPath ? "line on-path" : "line";
  return (
    <svg class="graph" width={(Math.min(lane, MAX_LANES) + 1) * LANE_PX + 4} height={HEIGHT_PX} aria-hidden="true">
      {open.map((each) => (
        <path key={each.lane} class={path.has(each.to) ? "line on-path" : "line"} d={`M${center(each.lane)} 0V${HEIGHT_PX}`} />
      ))}
      {parentLane !== null && <path class={line} d={parentLane === lane ? `M${x} 0V${MIDDLE}` : `M${center(parentLane)} 0C${center(parentLane)} ${MIDDLE} ${center(parentLane)} ${MIDDLE} ${x} ${MIDDLE}`} />}
      {hasChildren && <path class={isOnPath && !isCurrent ? "line on-path" : "line"} d={`M${x} ${MIDDLE}V${HEIGHT_PX}`} />}
      <circle class={`dot ${node.origin} ${isOnPath ? "on-path" : ""}`} cx={x} cy={MIDDLE} r={isCurrent ? 5 : 3.5} />
    </svg>
  );
}

function center(lane: number): number {
  return lane * LANE_PX + 7;
}
