// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

//go:embed chromium.sh
var findChromium string

// Chromium returns the path of a Chromium, installing it if it is missing and installable; errors
// suggest a remedy.
func Chromium() (string, error) {
	cmd := exec.Command("sh", "-c", findChromium)
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(complaint.String()), "\n")
		return "", errors.New(lines[len(lines)-1])
	}
	return strings.TrimSpace(string(out)), nil
}

// Browser is a headless Chromium with a separate profile.
type Browser struct{ ctx context.Context }

// Launch starts a browser; end ends it.
func Launch(path string) (b *Browser, end func(), err error) {
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox,
		chromedp.DisableGPU, chromedp.NoFirstRun)
	for _, flag := range []string{"disable-quic", "disable-background-networking", "disable-component-update",
		"disable-sync", "disable-dev-shm-usage"} {
		options = append(options, chromedp.Flag(flag, true))
	}
	// A tab's behaviour must not depend on the topmost one.
	for _, flag := range []string{"disable-background-timer-throttling", "disable-backgrounding-occluded-windows",
		"disable-renderer-backgrounding"} {
		options = append(options, chromedp.Flag(flag, true))
	}
	options = append(options, chromedp.WSURLReadTimeout(time.Minute))
	ctx, endProcess := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, endBrowser := chromedp.NewContext(ctx)
	end = func() { endBrowser(); endProcess() }
	if err := chromedp.Do(ctx); err != nil { // starts the browser
		end()
		return nil, nil, fmt.Errorf("start %s: %w", path, err)
	}
	return &Browser{ctx}, end, nil
}

// View is the reader's screen and settings.
type View struct {
	Width, Height int64
	Dark          bool
	Scale         float64 // device pixels per page pixel; 0: 1
}

// Page is a tab.
type Page struct {
	ctx   context.Context
	close func()

	mu       sync.Mutex
	faults   []string
	forgiven bool
}

// Open opens an address in a separate tab, with separate cookies and storage.
func (b *Browser) Open(address string, v View) (*Page, error) {
	ctx, closeTab := chromedp.NewContext(b.ctx, chromedp.WithNewBrowserContext())
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	p := &Page{ctx: ctx, close: func() { cancel(); closeTab() }}
	if v.Scale == 0 {
		v.Scale = 1
	}

	theme := "light"
	if v.Dark {
		theme = "dark"
	}

	err := errors.Join(
		chromedp.Do(ctx),
		chromedp.Listen(ctx, p.hear),
		call(ctx, log.Enable, cdp.Empty{}),
		call(ctx, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: v.Width,
			Height: v.Height, DeviceScaleFactor: v.Scale, Mobile: v.Width < 600}),
		call(ctx, emulation.SetEmulatedMedia,
			emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}}}),
		p.navigate(address),
	)

	if err != nil {
		p.Close()
		return nil, fmt.Errorf("open %s: %w", address, err)
	}
	return p, nil
}

// networkChanged is the error of loads aborted by a browser because an interface of the machine
// appeared or disappeared, for example when a container started. It is not a fault.
const networkChanged = "net::ERR_NETWORK_CHANGED"

func (p *Page) navigate(address string) error {
	for tries := 1; ; tries++ {
		err := chromedp.Do(p.ctx, chromedp.Navigate(address))
		if err == nil || tries == 20 || !strings.Contains(err.Error(), networkChanged) {
			return err
		}
	}
}

func call[P, R any](ctx context.Context, command cdp.Command[P, R], params P) error {
	_, err := chromedp.Call(ctx, command, params)
	return err
}

// Call sends a command of the DevTools protocol.
func Call[P, R any](p *Page, command cdp.Command[P, R], params P) (R, error) {
	return chromedp.Call(p.ctx, command, params)
}

// Close closes the tab.
func (p *Page) Close() { p.close() }

// hear records errors of the page.
func (p *Page) hear(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.forgiven {
		return
	}
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		text := e.ExceptionDetails.Text
		if e.ExceptionDetails.Exception != nil {
			text += " " + e.ExceptionDetails.Exception.Description
		}
		if !strings.Contains(text, "Failed to fetch dynamically imported module") { // same cause; the page reloads itself
			p.faults = append(p.faults, text)
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == "error" && !strings.Contains(e.Entry.Text, networkChanged) {
			p.faults = append(p.faults, e.Entry.Text+" "+e.Entry.URL)
		}
	}
}

// Faults returns exceptions, and resources refused or missed by the browser, since the tab was
// opened.
func (p *Page) Faults() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.faults...)
}

// Eval evaluates an expression in the page, awaiting promises.
func Eval[T any](p *Page, expression string) (T, error) {
	ctx, cancel := context.WithTimeout(p.ctx, time.Minute)
	defer cancel()
	return chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// patience is the time after which an expected event counts as missing: test machines are slow at
// times.
const patience = 40 * time.Second

// Wait waits until an expression is true.
func (p *Page) Wait(expression string) error { return p.WaitFor(expression, patience) }

// WaitFor waits with a different limit.
func (p *Page) WaitFor(expression string, patience time.Duration) error {
	deadline := time.Now().Add(patience)
	for {
		ok, err := Eval[bool](p, "Boolean("+expression+")")
		if ok {
			return nil
		}
		if time.Now().After(deadline) {
			where, _ := Eval[string](p, "document.body.innerText.slice(0, 600)")
			failed := ""
			if err != nil {
				failed = " (" + err.Error() + ")"
			}
			return fmt.Errorf("not within %s: %s%s\nfaults: %q\npage: %s", patience, expression, failed, p.Faults(), where)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-p.ctx.Done():
			return p.ctx.Err()
		}
	}
}

// Press presses keys one after the other: single letters, or keys by their name in kb.
func (p *Page) Press(keys ...string) error {
	for _, key := range keys {
		if err := chromedp.Do(p.ctx, chromedp.KeyEvent(key)); err != nil {
			return err
		}
	}
	return nil
}

// Click clicks the first element of a CSS selector, once it exists.
func (p *Page) Click(selector string) error {
	if err := p.Wait(fmt.Sprintf("document.querySelector(%q)", selector)); err != nil {
		return err
	}
	_, err := Eval[bool](p, fmt.Sprintf("(document.querySelector(%q).click(), true)", selector))
	return err
}

// ClickAt clicks at a point.
func (p *Page) ClickAt(x, y float64) error { return chromedp.Do(p.ctx, chromedp.MouseClickXY(x, y)) }

// Screenshot returns the visible page as PNG.
func (p *Page) Screenshot() ([]byte, error) { return chromedp.Run(p.ctx, chromedp.CaptureScreenshot()) }

// Forgive clears intended faults: those so far, and the browser's late reports of them.
func (p *Page) Forgive() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults, p.forgiven = nil, true
}
