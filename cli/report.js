'use strict';
/* The script of the page of `tenon explain --html`. D is the data that the program put into the page; X the explanation of the
 * program shown, exactly `tenon explain --json`. Sections draw themselves from it; select() is what connects them. */
const $ = id => document.getElementById(id), D = JSON.parse($('data').textContent), X = D.programs[0].explain, T = D.programs[0].texts || {};
const SVG = new Set(['svg', 'g', 'rect', 'path', 'text', 'line', 'circle', 'title', 'tspan']);
function h(tag, attrs, ...kids) {
  const e = SVG.has(tag) ? document.createElementNS('http://www.w3.org/2000/svg', tag) : document.createElement(tag);
  for (const [k, v] of Object.entries(attrs || {})) {
    if (k.startsWith('on')) e.addEventListener(k.slice(2), v); else if (v !== undefined && v !== null && v !== false) e.setAttribute(k, v === true ? '' : v);
  }
  e.append(...kids.flat(9).filter(x => x !== null && x !== undefined && x !== false));
  return e;
}
const three = x => x === 0 ? '0' : x >= 1000 ? Math.round(x).toLocaleString('en') : String(+x.toPrecision(3));
const bytes = n => n < 1024 ? n + ' B' : n < 1 << 20 ? three(n / 1024) + ' KiB' : n < 2 ** 30 ? three(n / 2 ** 20) + ' MiB' : three(n / 2 ** 30) + ' GiB';
const time = us => us === 0 ? '0' : us < 1 ? three(us * 1e3) + ' ns' : us < 1e3 ? three(us) + ' µs' : three(us / 1e3) + ' ms';
const percent = x => x < 0.001 && x > 0 ? '<0.1 %' : (100 * x).toFixed(x < 0.1 ? 1 : 0) + ' %';
const count = (n, what) => n.toLocaleString('en') + ' ' + what + (n === 1 ? '' : 's');
const K = X.kernels, GPU = X.machine.gpu, total = x => x.kernels.reduce((s, k) => s + k.predicted_us, 0), ALL = total(X);
const V = new Map(X.values.map(v => [v.id, v])), B = new Map(X.buffers.map(b => [b.buffer, b]));
const LEVELS = GPU ? [['l1', 'registers ↔ shared memory', '--l1'], ['l2', 'shared memory ↔ L2', '--l2'], ['memory', 'L2 ↔ memory', '--memory']]
  : [['l1', 'registers ↔ L1', '--l1'], ['l2', 'L1 ↔ L2', '--l2'], ['l3', 'L2 ↔ L3', '--l3'], ['memory', 'L3 ↔ memory', '--memory']];
const VIEWS = new Set(['reshape', 'expand', 'permute', 'slice', 'flip', 'window']), SLOTS = ['the temporaries', 'the states', 'the states that no run changes', 'the constants'];
const byTime = K.map((k, i) => i).sort((a, b) => K[b].predicted_us - K[a].predicted_us);
const users = new Map();
X.values.forEach(v => (v.in || []).forEach(i => users.set(i, (users.get(i) || []).concat(v.id))));
const into = K.map(() => []), outof = K.map(() => []);
X.edges.forEach(e => (into[e.to].push(e), outof[e.from].push(e)));
const name = id => { const v = V.get(id); return v ? (v.name || '%' + id + ' ' + v.op) : 'a value'; };
const long = id => { const v = V.get(id); return v ? `%${id} ${v.op} ${v.shape}${v.name ? ' (' + v.name + ')' : ''}` : ''; };
const kname = i => `kernel ${i}: ${K[i].name}`, reason = d => d >= 0 ? X.decisions[d].reason : 'nothing was noted';
const go = (to, text) => h('button', { class: 'link', type: 'button', onclick: () => select(to, true) }, text);
const valueLink = id => go({ value: id }, name(id)), kernelLink = i => go({ kernel: i }, kname(i));
const list = (xs, f) => xs.map((x, i) => [i ? ', ' : '', f(x)]);
const fill = (id, ...kids) => $(id).replaceChildren(...kids.flat(9).filter(x => x !== null && x !== undefined && x !== false));

/* ---- summary ---- */
function tile(value, text) { return h('div', { class: 'tile' }, h('b', {}, value), h('span', {}, text)); }
function summary() {
  const ops = X.values.filter(v => v.kernel !== undefined).length, spec = D.programs[0].spec, moved = X.bytes_read + X.bytes_written;
  document.title = `Tenon explains ${spec}`;
  fill('title', `What Tenon made of ${spec}`);
  fill('intro', `Graph “${X.graph}”, compiled for the device ${X.device} (${X.machine.title}), fusion level ${X.fusion}, ${count(X.threads, 'thread')}. `,
    'Click any value or kernel to see where it lives and why. Times and bytes are predictions of the machine model', D.profile ? '; where it says so, they were measured.' : '.');
  fill('tiles', tile(time(ALL), 'predicted for one run, all kernels'), tile(`${ops} → ${K.length}`, 'operations became kernels'),
    tile(bytes(moved), `through memory at kernel borders; ${bytes(X.unfused_bytes_read + X.unfused_bytes_written)} without fusion`),
    tile(three(X.flops / 1e6) + ' Mflop', `arithmetic; ${three(X.flops / Math.max(1, moved))} for each byte moved`),
    tile(bytes(X.arena_bytes), `of temporaries planned; no plan needs less than ${bytes(X.arena_bound)}`));
  const shown = byTime.slice(0, 10), W = 900, top = shown.length ? K[shown[0]].predicted_us : 1, rest = byTime.slice(10).reduce((s, i) => s + K[i].predicted_us, 0);
  const rows = shown.map(i => [kname(i), K[i].predicted_us, K[i].predicted_bound, i]).concat(rest ? [[`${byTime.length - 10} other kernels`, rest, '', -1]] : []);
  const most = Math.max(top, rest);
  fill('top', rows.length ? h('svg', { viewBox: `0 0 ${W} ${rows.length * 26 + 4}`, role: 'img', 'aria-label': 'Kernels by predicted time' }, rows.map((r, n) =>
    h('g', { class: r[3] < 0 ? '' : 'node', tabindex: r[3] < 0 ? null : 0, role: r[3] < 0 ? null : 'button', onclick: () => r[3] >= 0 && select({ kernel: r[3] }, true), onkeydown: enter },
      h('text', { x: 282, y: n * 26 + 18, 'text-anchor': 'end' }, r[0].length > 42 ? r[0].slice(0, 41) + '…' : r[0]),
      h('rect', { x: 290, y: n * 26 + 5, width: Math.max(1, 350 * r[1] / most), height: 18, rx: 3, style: `fill:var(${r[3] < 0 ? '--line' : n < 3 ? '--memory' : '--l2'});stroke:none` }),
      h('text', { x: 298 + 350 * r[1] / most, y: n * 26 + 18 }, `${time(r[1])}, ${percent(r[1] / ALL)}`, h('tspan', { class: 'soft' }, r[2] ? `  bound by ${r[2]}` : ''))))) : 'The program has no kernels.');
}
function enter(e) { if (e.key === 'Enter' || e.key === ' ') { e.preventDefault(); e.currentTarget.dispatchEvent(new MouseEvent('click', { bubbles: true })); } }

/* ---- a layered drawing: nodes { w, h }, edges { a, b } from earlier nodes to later ones. Gives nodes x, y and edges a path. ---- */
function layout(N, E) {
  const ups = N.map(() => []), downs = N.map(() => []), items = N.map((n, i) => ({ n, w: n.w, h: n.h, up: [], down: [], rank: 0 }));
  E.forEach(e => (ups[e.b].push(e.a), downs[e.a].push(e.b)));
  N.forEach((n, i) => { items[i].rank = ups[i].reduce((r, u) => Math.max(r, items[u].rank + 1), 0); });
  for (let i = N.length; i-- > 0;) if (!ups[i].length && downs[i].length) items[i].rank = Math.min(...downs[i].map(d => items[d].rank)) - 1;
  const least = Math.min(0, ...items.map(i => i.rank)), rows = [], bends = E.reduce((s, e) => s + items[e.b].rank - items[e.a].rank, 0) < 20000;
  const put = i => ((rows[i.rank] = rows[i.rank] || []).push(i), i);
  items.forEach(i => { i.rank -= least; put(i); });
  E.forEach(e => {
    e.via = [items[e.a]];
    for (let r = items[e.a].rank + 1; bends && r < items[e.b].rank; r++) e.via.push(put({ w: 6, h: 0, up: [], down: [], rank: r }));
    e.via.push(items[e.b]);
    for (let k = 1; k < e.via.length; k++) { e.via[k - 1].down.push(e.via[k]); e.via[k].up.push(e.via[k - 1]); }
  });
  for (let r = 0; r < rows.length; r++) (rows[r] = rows[r] || []).forEach((x, i) => { x.at = i; });
  const mean = (xs, f) => xs.reduce((s, x) => s + f(x), 0) / xs.length;
  for (let turn = 0; turn < 8; turn++) {
    for (let n = 0; n < rows.length; n++) {
      const row = rows[turn % 2 ? rows.length - 1 - n : n], side = turn % 2 ? 'down' : 'up';
      row.forEach(x => { x.key = x[side].length ? mean(x[side], y => (y.at + 0.5) / rows[y.rank].length) : (x.at + 0.5) / row.length; });
      row.sort((a, b) => a.key - b.key || a.at - b.at).forEach((x, i) => { x.at = i; });
    }
  }
  rows.forEach(row => { let x = 0; row.forEach(i => { i.x = x; x += i.w + 18; }); });
  for (let turn = 0; turn < 12; turn++) {
    for (let n = 0; n < rows.length; n++) {
      const row = rows[turn % 2 ? rows.length - 1 - n : n], side = turn % 2 ? 'down' : 'up', want = [];
      let right = -Infinity, off = 0;
      row.forEach((i, k) => { want[k] = i[side].length ? mean(i[side], y => y.x + y.w / 2) - i.w / 2 : i.x; });
      row.forEach((i, k) => { i.x = Math.max(want[k], right); right = i.x + i.w + 18; off += i.x - want[k]; });
      row.forEach(i => { i.x -= off / row.length; });
    }
  }
  const left = Math.min(...items.map(i => i.x), ...E.flatMap(e => e.via.map(i => i.x)), Infinity);
  let y = 10, width = 0;
  rows.forEach(row => {
    const tall = Math.max(0, ...row.map(i => i.h));
    row.forEach(i => { i.x += 10 - left; i.y = y; i.bottom = y + (i.n ? i.h : tall); width = Math.max(width, i.x + i.w); });
    y += tall + 46;
  });
  items.forEach(i => { i.n.x = i.x; i.n.y = i.y; });
  E.forEach(e => {
    let [x0, y0] = [e.via[0].x + e.via[0].w / 2, e.via[0].bottom], d = `M${x0.toFixed(1)} ${y0}`;
    e.via.slice(1).forEach(i => {
      const x = i.x + i.w / 2, bow = Math.min(40, (i.y - y0) / 2);
      d += `C${x0.toFixed(1)} ${y0 + bow} ${x.toFixed(1)} ${i.y - bow} ${x.toFixed(1)} ${i.y}` + (i.n ? '' : `L${x.toFixed(1)} ${i.bottom}`);
      [x0, y0] = [x, i.bottom];
    });
    e.d = d;
  });
  return { width: width + 10, height: y };
}

/* ---- the graph ---- */
const view = { zoom: 0, what: 'after', size: null };
const clip = (s, n) => s.length > n ? s.slice(0, n - 1) + '…' : s;
function kernelNodes() {
  const N = [], E = [], of = new Map();
  const io = v => { if (!of.has(v)) { of.set(v, N.length); N.push({ key: 'v' + v, w: 150, h: 40, to: { value: v }, rows: [name(v), V.get(v).shape], plain: true }); } return of.get(v); };
  const reads = K.map(k => [...new Set(k.values.flatMap(v => V.get(v.id).in || []))].filter(v => V.get(v) && V.get(v).op === 'input'));
  reads.flat().forEach(io);
  const first = N.length;
  K.forEach((k, i) => {
    const own = k.values.filter(v => !VIEWS.has(v.op)), rows = (own.length ? own : k.values).slice(-9).map(v => ({ to: { value: v.id }, text: clip(`${v.op}  ${V.get(v.id).shape}`, 30) }));
    const more = k.values.length - rows.length;
    N.push({ key: 'k' + i, w: 216, h: 46 + 17 * (rows.length + (more > 0)), to: { kernel: i }, fused: k.values.length > 1,
      rows: [clip(`${i}  ${k.name}`, 27), `${time(k.predicted_us)}, ${percent(k.predicted_us / ALL)}`], values: rows.concat(more > 0 ? [{ text: `and ${count(more, k.values.length > 9 ? 'other value' : 'view')}` }] : []), share: k.predicted_us / (K[byTime[0]].predicted_us || 1) });
    reads[i].forEach(v => E.push({ a: of.get(v), b: first + i }));
  });
  X.edges.forEach((e, i) => E.push({ a: first + e.from, b: first + e.to, edge: i }));
  return [N, E];
}
function nodeView(n) {
  return h('g', { class: 'node' + (n.fused ? ' fused' : '') + (n.kind ? ' ' + n.kind : ''), 'data-key': n.key, tabindex: 0, role: 'button', 'aria-label': n.rows.join(', '), transform: `translate(${n.x.toFixed(1)} ${n.y})`,
    onclick: e => { e.stopPropagation(); select(n.to, false); }, onkeydown: enter },
    h('rect', { width: n.w, height: n.h, rx: n.plain ? 18 : 6 }),
    n.share !== undefined && h('g', {}, h('rect', { x: 8, y: 39, width: n.w - 16, height: 3, style: 'fill:var(--line)' }), h('rect', { x: 8, y: 39, width: (n.w - 16) * n.share, height: 3, style: 'fill:var(--memory)' })),
    h('text', { x: n.plain ? n.w / 2 : 10, y: 17, 'text-anchor': n.plain ? 'middle' : 'start', style: 'font-weight:600' }, clip(n.rows[0], n.plain ? 21 : 28)),
    h('text', { x: n.plain ? n.w / 2 : 10, y: 33, 'text-anchor': n.plain ? 'middle' : 'start', class: 'soft' }, clip(n.rows[1], 28)),
    (n.values || []).map((r, i) => h('text', { x: 10, y: 58 + 17 * i, class: r.to ? '' : 'soft', onclick: e => { if (r.to) { e.stopPropagation(); select(r.to, false); } } }, r.text)));
}
function drawGraph() {
  const [N, E] = kernelNodes();
  if (N.length > 900) { fill('canvas', h('p', { class: 'what', style: 'padding:12px' }, `The graph has ${count(K.length, 'kernel')}, too many to draw. The tables below show the costliest; “find” looks for others.`)); return; }
  const size = view.size = layout(N, E);
  fill('canvas', h('svg', { viewBox: `0 0 ${size.width} ${size.height}`, role: 'group' },
    E.map(e => h('path', { class: 'edge', d: e.d, 'data-edge': e.edge }, e.edge !== undefined && h('title', {}, edgeText(X.edges[e.edge])))), N.map(nodeView)));
  zoom(0);
}
const edgeText = e => `${long(e.value)}: ${bytes(e.bytes)} from kernel ${e.from} to kernel ${e.to}. ${reason(e.decision)}`;
function zoom(step) {
  const box = $('canvas'), svg = box.querySelector('svg');
  if (!svg) return;
  const fit = Math.min(1, (box.clientWidth - 4) / view.size.width);
  view.zoom = step === 0 ? Math.max(fit, 0.55) : Math.min(3, Math.max(0.1, view.zoom * step));
  if (step === 'fit') view.zoom = fit;
  svg.style.width = view.size.width * view.zoom + 'px';
  svg.style.height = view.size.height * view.zoom + 'px';
}
function find(text) {
  const t = text.trim().toLowerCase(), nodes = [...$('canvas').querySelectorAll('.node')];
  const hit = n => { const k = n.dataset.key; return k[0] === 'k' ? (kname(+k.slice(1)) + K[+k.slice(1)].values.map(v => long(v.id)).join(' ')).toLowerCase().includes(t) : long(+k.slice(1)).toLowerCase().includes(t); };
  nodes.forEach(n => n.classList.toggle('hit', t !== '' && hit(n)));
  const hits = nodes.filter(n => n.classList.contains('hit'));
  fill('found', t ? `${hits.length} found` : '');
  if (hits.length) hits[0].scrollIntoView({ block: 'nearest', inline: 'center' });
}
function graphTools() {
  const button = (text, label, f) => h('button', { class: 'do', type: 'button', 'aria-label': label, onclick: f }, text);
  fill('graphtools', h('input', { type: 'search', placeholder: 'Find a value or op', 'aria-label': 'Find in the graph', oninput: e => find(e.target.value) }), h('span', { id: 'found', class: 'soft' }),
    button('+', 'Larger', () => zoom(1.25)), button('−', 'Smaller', () => zoom(0.8)), button('Fit', 'Fit the width', () => zoom('fit')));
}

/* ---- what is selected ---- */
function place(v) {
  const b = B.get(v.buffer);
  if (v.op === 'input') return 'In the caller’s memory: an input.';
  if (b) return [`In memory, ${bytes(b.bytes)} at offset ${b.offset.toLocaleString('en')} of ${SLOTS[b.slot]}`,
    b.first !== undefined ? `; the place is needed from kernel ${b.first} to kernel ${b.last}, then others have it` : '', b.in_place_of !== undefined ? '; it takes over the place of a value that is used up' : '', '.'];
  if (v.buffer !== undefined) return 'In the caller’s memory: an output.';
  if (v.kernel !== undefined) return ['Nowhere in memory: it exists only inside of ', v.kernels > 1 ? `${v.kernels} kernels, each of which computes it again` : kernelLink(v.kernel), ', in registers or the nearest cache.'];
  return v.op === 'const' ? 'In the instructions of the kernels that use it.' : 'Nowhere: its readers compute it from the indices.';
}
function valueDetail(id) {
  const v = V.get(id), mine = X.decisions.filter(d => d.value === id), trips = X.edges.filter(e => e.value === id), read = users.get(id) || [];
  return [h('h3', {}, long(id)), h('p', {}, place(v)), v.kernel !== undefined && v.buffer !== undefined && h('p', {}, 'Made by ', kernelLink(v.kernel), '.'),
    h('p', {}, 'Computed from: ', (v.in || []).length ? list(v.in.filter(i => V.has(i)), valueLink) : 'nothing', '. Read by: ', read.length ? list(read.slice(0, 12), valueLink) : 'nothing in the graph', read.length > 12 && ` and ${read.length - 12} more`, '.'),
    h('h3', {}, 'Why'), mine.length ? h('ul', {}, mine.map(d => h('li', {}, h('b', { class: d.fused ? 'good' : 'bad' }, d.fused ? 'fused: ' : 'not fused: '), d.reason, d.with ? [' (with ', valueLink(d.with), ')'] : ''))) : h('p', {}, 'The compiler had nothing to decide about it.'),
    v.stored_us && h('p', {}, h('b', {}, 'Otherwise: '), `stored, it would be ${bytes(v.bytes)} written and read again${v.kernels > 1 ? ' in each of ' + v.kernels + ' kernels' : ''}, about ${time(v.stored_us)} a run.`),
    trips.length > 0 && h('p', {}, h('b', {}, 'What it costs: '), `${bytes(trips[0].bytes)} written once and read by `, list([...new Set(trips.map(e => e.to))], i => go({ kernel: i }, 'kernel ' + i)), `; about ${time(trips.reduce((s, e) => Math.max(s, e.us), 0))} for each that fusing would save at most.`)];
}
function kernelDetail(i) {
  const k = K[i], trip = (e, other) => h('li', {}, go({ kernel: other }, 'kernel ' + other), ', ', valueLink(e.value), ` (${bytes(e.bytes)}): ${reason(e.decision)}`);
  return [h('h3', {}, kname(i)), h('p', {}, `Predicted ${time(k.predicted_us)}, ${percent(k.predicted_us / ALL)} of the run, bound by ${k.predicted_bound}${k.parallel ? '; split over threads' : ''}${k.code !== i ? `; the code of kernel ${k.code}` : ''}.`),
    h('p', {}, `${three(k.flops / 1e3)} kflop; reads ${bytes(k.bytes_read)}, writes ${bytes(k.bytes_written)}; moves ` + LEVELS.map(l => `${bytes(k.level_bytes[l[0]])} ${l[1]}`).join(', ') + '.'),
    h('p', {}, 'Computes: ', list(k.values, v => go({ value: v.id }, v.op)), '.'),
    k.in_place.length > 0 && h('p', {}, 'In place: ', list(k.in_place, p => [valueLink(p.value), ' over ', valueLink(p.over)]), '.'),
    h('p', {}, h('a', { href: '#code', onclick: () => showCode(i) }, 'Its schedule and code')),
    into[i].length > 0 && [h('h3', {}, 'Reads from other kernels, not fused because'), h('ul', {}, into[i].map(e => trip(e, e.from)))],
    outof[i].length > 0 && [h('h3', {}, 'Read by other kernels, not fused because'), h('ul', {}, outof[i].map(e => trip(e, e.to)))]];
}
function select(to, scroll) {
  const i = to.kernel !== undefined ? to.kernel : (V.get(to.value) || {}).kernel;
  fill('detail', to.kernel !== undefined ? kernelDetail(i) : valueDetail(to.value));
  document.querySelectorAll('.on').forEach(e => !e.closest('#codes') && e.classList.remove('on'));
  document.querySelectorAll(`[data-key="k${i}"], tr[data-k="${i}"], [data-key="v${to.value}"]`).forEach(e => e.classList.add('on'));
  X.edges.forEach((e, n) => { if (to.value !== undefined ? e.value === to.value : e.from === i || e.to === i) document.querySelectorAll(`[data-edge="${n}"]`).forEach(p => p.classList.add('on')); });
  const node = $('canvas').querySelector(`[data-key="k${i}"], [data-key="v${to.value}"]`);
  if (scroll) $('graph').scrollIntoView();
  if (node) { const a = node.getBoundingClientRect(), b = $('canvas').getBoundingClientRect();
    if (a.top < b.top || a.bottom > b.bottom || a.left < b.left || a.right > b.right) $('canvas').scrollBy({ left: a.left - b.left - b.width / 3, top: a.top - b.top - b.height / 3 }); }
  if (i !== undefined && K[i]) showCode(i);
}

/* ---- reasons, kernels ---- */
function edges(text) {
  const t = (text || '').trim().toLowerCase(), all = X.edges.slice().sort((a, b) => b.us - a.us).filter(e => !t || (edgeText(e) + K[e.from].name + K[e.to].name).toLowerCase().includes(t));
  fill('whycount', X.edges.length ? `${all.length} of ${X.edges.length}; all have a reason` : 'All is one kernel: nothing to ask.');
  fill('edges', h('tr', {}, ['From', 'To', 'Value', 'Bytes', 'Price', 'Not fused because'].map((x, i) => h('th', { class: i === 3 || i === 4 ? 'n' : '' }, x))),
    all.slice(0, 400).map(e => h('tr', {}, h('td', {}, go({ kernel: e.from }, `${e.from} ${clip(K[e.from].name, 22)}`)), h('td', {}, go({ kernel: e.to }, `${e.to} ${clip(K[e.to].name, 22)}`)), h('td', {}, valueLink(e.value)),
      h('td', { class: 'n' }, bytes(e.bytes)), h('td', { class: 'n' }, time(e.us)), h('td', {}, reason(e.decision)))));
}
function kernels() {
  const most = f => Math.max(...K.map(f), 1e-9), meter = (x, max, text, c) => h('td', { class: 'n meter', style: `--w:${(100 * x / max).toFixed(1)}%;--c:var(${c})` }, text);
  const slow = most(k => k.predicted_us), work = most(k => k.flops), full = LEVELS.map(l => most(k => k.level_bytes[l[0]]));
  const measured = D.profile && D.profile.kernels, heads = ['', 'Kernel', 'Predicted', ...(measured ? ['Measured'] : []), 'Bound by', 'Arithmetic', ...LEVELS.map(l => l[1])];
  fill('table', h('tr', {}, heads.map((x, i) => h('th', { class: i > 1 && x !== 'Bound by' ? 'n' : '' }, x))), byTime.slice(0, 500).map(i => { const k = K[i];
    return h('tr', { 'data-k': i, onclick: () => select({ kernel: i }, false) }, h('td', { class: 'n' }, i), h('td', {}, go({ kernel: i }, k.name), h('div', { class: 'soft' }, clip(k.values.filter(v => !VIEWS.has(v.op)).map(v => v.op).join(', '), 60))),
      meter(k.predicted_us, slow, time(k.predicted_us), '--bar'), measured && h('td', { class: 'n' }, time(measured[i].median_us)), h('td', {}, k.predicted_bound), meter(k.flops, work, three(k.flops / 1e3) + ' kflop', '--bar'),
      LEVELS.map((l, n) => meter(k.level_bytes[l[0]], full[n], bytes(k.level_bytes[l[0]]), l[2]))); }));
}

/* ---- code ---- */
const FORMS = [['scalar', 'Loops, before the schedule'], ['kernels', 'Loops, as the schedule tiles them'], ['c', 'C'], ['x86', 'Machine code'], ['cuda', 'CUDA C'], ['opencl', 'OpenCL C']];
const codes = K.map((k, i) => i).filter(i => K[i].code === i), shown = new Set(['kernels', 'c', 'x86', 'cuda', 'opencl']);
function showCode(i) {
  const at = codes.indexOf(K[i].code), forms = FORMS.filter(f => T[f[0]] && T[f[0]][at] !== undefined), open = forms.filter(f => shown.has(f[0]));
  const registers = line => (line.match(/^\s*(?:update )?%\d+|\bv\d+/g) || []).slice(0, 1).map(x => x.match(/\d+/)[0]).join();
  fill('codetools', h('label', {}, 'Kernel ', h('select', { 'aria-label': 'Kernel', onchange: e => showCode(+e.target.value) }, codes.map(c => h('option', { value: c, selected: c === K[i].code }, kname(c))))),
    forms.map(f => h('button', { class: 'do', type: 'button', 'aria-pressed': String(shown.has(f[0])), onclick: () => { shown.has(f[0]) ? shown.delete(f[0]) : shown.add(f[0]); showCode(i); } }, f[1])));
  fill('schedule', K[i].schedule ? [h('b', {}, 'Schedule: '), h('code', {}, K[i].schedule.join('; '))] : '', K[i].tuned ? ' (measured by tuning)' : '');
  $('codes').style.setProperty('--n', Math.max(1, open.length));
  fill('codes', open.map(f => h('div', {}, h('h3', {}, f[1]), h('pre', { tabindex: 0, 'aria-label': f[1] }, T[f[0]][at].split('\n').map(l => h('span', { 'data-r': f[0] === 'x86' ? null : registers(l) }, l || ' '))))));
}
$('codes').addEventListener('pointerover', e => {
  const r = e.target.dataset && e.target.dataset.r;
  $('codes').querySelectorAll('.on').forEach(l => l.classList.remove('on'));
  if (r) $('codes').querySelectorAll(`[data-r="${r}"]`).forEach(l => l.classList.add('on'));
});

/* ---- all of it ---- */
summary();
graphTools();
drawGraph();
edges('');
kernels();
$('whyfind').addEventListener('input', e => edges(e.target.value));
fill('menu', [...document.querySelectorAll('section')].map(s => h('a', { href: '#' + s.id }, s.dataset.menu)));
if (K.length) select({ kernel: byTime[0] }, false);
fill('foot', `Written by tenon ${D.tenon}. The data of this page is the JSON of “tenon explain ${D.programs[0].spec} --json”; nothing is loaded from elsewhere.`);
