/** Usage by day as stacked bars. What it shows is in the table as numbers, by day where that is chosen. */
import { signal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import { billed, money, ticks, type Amounts, type Bar } from "../core/usage";
import { hasCosts, shownBars } from "../state/usage";

type Measure = "tokens" | "requests" | "cost";

interface Series {
  name: string;
  /** Its colour, and the style of its bars. */
  look: string;
  value: (amounts: Amounts) => number;
}

const MEASURES: Record<Measure, { label: string; series: Series[] }> = {
  tokens: {
    label: "Billed tokens",
    series: [
      { name: "input, cached", look: "cached", value: ({ cached }) => cached },
      { name: "input, not cached", look: "input", value: ({ input, cached }) => input - cached },
      { name: "output", look: "output", value: ({ output }) => output },
    ],
  },
  requests: { label: "Requests", series: [{ name: "requests", look: "input", value: ({ requests }) => requests }] },
  cost: { label: "Cost", series: [{ name: "cost", look: "input", value: money }] },
};
const HEIGHT = 230;
const MARGIN = { left: 48, right: 8, top: 10, bottom: 24 };
/** Pixels that a date below the plot needs. */
const DATE_WIDTH = 64;

const measure = signal<Measure>("tokens");
const width = signal(0);
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

export function UsagePlot() {
  const figure = useRef<HTMLElement>(null);
  useLayoutEffect(() => {
    const observer = new ResizeObserver(([entry]) => (width.value = Math.floor(entry?.contentRect.width ?? 0)));
    if (figure.current) observer.observe(figure.current);
    return () => observer.disconnect();
  }, []);
  const kinds = (Object.keys(MEASURES) as Measure[]).filter((name) => name !== "cost" || hasCosts.value);
  const kind = kinds.includes(measure.value) ? measure.value : "tokens";
  const { series } = MEASURES[kind];
  const days = shownBars.value;
  const values = days.map((bar) => series.reduce((sum, { value }) => sum + value(bar), 0));
  const most = Math.max(0, ...values);
  const highest = days[values.indexOf(most)];
  return (
    <figure ref={figure} class="plot">
      <div class="question">
        <fieldset class="segments">
          <legend class="visually-hidden">What the plot shows</legend>
          {kinds.map((name) => (
            <label key={name}>
              <input type="radio" name="measure" checked={kind === name} onChange={() => (measure.value = name)} />
              {MEASURES[name].label}
            </label>
          ))}
        </fieldset>
        {series.length > 1 && (
          <ul class="series">
            {series.map(({ name, look }) => (
              <li key={name}>
                <svg width="12" height="12" aria-hidden="true">
                  <rect width="12" height="12" rx="2" class={look} />
                </svg>
                {name}
              </li>
            ))}
          </ul>
        )}
      </div>
      {width.value > 0 && <Bars days={days} series={series} most={most} isWhole={kind !== "cost"} label={MEASURES[kind].label} />}
      {highest && (
        <figcaption class="hint">
          Each bar is {lengthOf(days)}. The highest is {spanOf(highest)}, with {most.toLocaleString("en", { maximumFractionDigits: 6 })}.
        </figcaption>
      )}
    </figure>
  );
}

function Bars({ days, series, most, isWhole, label }: { days: Bar[]; series: Series[]; most: number; isWhole: boolean; label: string }) {
  const marks = ticks(most, isWhole);
  const top = marks.at(-1) || 1;
  const [inner, innerHeight] = [width.value - MARGIN.left - MARGIN.right, HEIGHT - MARGIN.top - MARGIN.bottom];
  const step = inner / days.length;
  const gap = step > 6 ? Math.min(4, step * 0.25) : 0.5;
  const everyNth = Math.ceil(DATE_WIDTH / step);
  const y = (value: number) => MARGIN.top + innerHeight * (1 - value / top);
  return (
    <svg width={width.value} height={HEIGHT} role="img" aria-label={`${label} from ${days[0]?.from} to ${days.at(-1)?.to}, at most ${compact.format(most)} per bar`}>
      {marks.map((mark) => (
        <g key={mark}>
          <line class="grid" x1={MARGIN.left} x2={width.value - MARGIN.right} y1={y(mark)} y2={y(mark)} />
          <text x={MARGIN.left - 6} y={y(mark)} dy="0.35em" text-anchor="end">
            {compact.format(mark)}
          </text>
        </g>
      ))}
      {days.map((bar, index) => {
        let from = 0;
        const left = MARGIN.left + index * step + gap / 2;
        return (
          <g key={bar.from}>
            <title>{titleOf(bar)}</title>
            <rect class="pointed" x={MARGIN.left + index * step} y={MARGIN.top} width={step} height={innerHeight} />
            {series.map(({ name, look, value }) => {
              const [bottom, height] = [y(from), (innerHeight * value(bar)) / top];
              from += value(bar);
              return height > 0 && <rect key={name} class={look} x={left} y={bottom - height} width={step - gap} height={height} />;
            })}
            {index % everyNth === 0 && left + DATE_WIDTH / 2 < width.value && (
              <text x={left + (step - gap) / 2} y={HEIGHT - 6} text-anchor="middle">
                {shortDate(bar.from)}
              </text>
            )}
          </g>
        );
      })}
    </svg>
  );
}

function lengthOf([bar]: Bar[]): string {
  const numDays = bar ? Math.round((Date.parse(bar.to) - Date.parse(bar.from)) / 86_400_000) + 1 : 1;
  return numDays === 1 ? "a day" : `${numDays} days`;
}

function spanOf({ from, to }: Bar): string {
  return from === to ? from : `${from} to ${to}`;
}

function titleOf(bar: Bar): string {
  const cost = bar.cost ? `, cost ${money(bar).toLocaleString("en", { maximumFractionDigits: 6 })}` : "";
  const [requests, tokens, cached] = [bar.requests, billed(bar), bar.cached].map((value) => value.toLocaleString("en"));
  return `${spanOf(bar)}: ${requests} requests, ${tokens} billed tokens, ${cached} of them cached${cost}`;
}

function shortDate(date: string): string {
  return new Date(date).toLocaleDateString("en", { month: "short", day: "numeric", timeZone: "UTC" });
}
