// A recording in the place of a live cluster: a slider through its time.

import {h, replace, text} from './dom.js';
import {moment, span} from './format.js';
import {read, write} from './address.js';
import {ask, setMoment} from './stream.js';

const speeds = [1, 10, 60, 600];
const pause = 500; // between two states, while it plays

export class Player {
  constructor(element, store, {from, until}, {failed}) {
    Object.assign(this, {store, from, until, failed});
    this.slider = h('input', {type: 'range', min: String(from), max: String(until), step: '1000', 'aria-label': 'Time of the recording', oninput: () => { this.stop(); this.seek(Number(this.slider.value)); }});
    this.button = h('button', {type: 'button', class: 'small', onclick: () => (this.timer ? this.stop() : this.play())}, 'Play');
    this.speed = h('select', {'aria-label': 'Playback speed'}, speeds.map((n) => h('option', {value: String(n), selected: n === 60}, n + ' ×')));
    this.time = h('span', {class: 'player-time'});
    replace(element, this.button, this.speed, this.slider, this.time);
    element.hidden = false;
    element.player = this; // for tests
    this.seek(Number(read('at')) || until);
  }

  // seek shows the cluster as it was then. While one time is being read, only the last of those asked for is kept.
  async seek(at) {
    this.at = Math.max(this.from, Math.min(this.until, Math.round(at)));
    this.slider.value = String(this.at);
    this.slider.setAttribute('aria-valuetext', moment(this.at));
    text(this.time, `${moment(this.at)} · ${span(this.at - this.from)} of ${span(this.until - this.from)}`);
    if (this.reading) { this.wanted = true; return; }
    this.reading = true;
    try {
      do {
        this.wanted = false;
        const asked = this.at;
        setMoment(asked);
        write({at: asked === this.until ? '' : String(asked)});
        const state = await ask('/api/state');
        this.store.frozen = asked;
        this.store.apply(state);
        this.failed('');
      } while (this.wanted);
    } catch (error) {
      this.stop();
      this.failed(error.message);
    }
    this.reading = false;
  }

  play() {
    if (this.at >= this.until) this.seek(this.from);
    text(this.button, 'Pause');
    this.timer = setInterval(() => {
      if (this.reading) return;
      this.seek(this.at + pause * Number(this.speed.value));
      if (this.at >= this.until) this.stop();
    }, pause);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = 0;
    text(this.button, 'Play');
  }
}
