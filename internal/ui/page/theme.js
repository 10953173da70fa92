// Light and dark: as the system, or as the reader chose. Paper is light, and has room for all rows of a list.

import {remembered, text} from './dom.js';
import {setDark} from './colours.js';

const signs = {system: '◐', light: '☀', dark: '☾'}, words = {system: 'Colours: as the system', light: 'Colours: light', dark: 'Colours: dark'}, order = Object.keys(signs);

// themed makes the button change the theme, and returns the function that applies it. redraw draws what CSS does not reach; print(on)
// prepares the page for paper, and ends that.
export function themed(button, {redraw, print}) {
  const system = matchMedia('(prefers-color-scheme: dark)');
  function apply() {
    const choice = remembered.get('theme', 'system');
    document.documentElement.dataset.theme = choice;
    setDark(choice === 'dark' || choice === 'system' && system.matches);
    text(button, signs[choice]);
    button.setAttribute('aria-label', words[choice]);
    button.title = words[choice];
    redraw();
  }
  button.addEventListener('click', () => {
    remembered.set('theme', order[(order.indexOf(remembered.get('theme', 'system')) + 1) % 3]);
    apply();
  });
  system.addEventListener('change', apply);
  addEventListener('beforeprint', () => { setDark(false); print(true); });
  addEventListener('afterprint', () => { print(false); apply(); });
  return apply;
}
