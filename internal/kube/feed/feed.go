// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package feed delivers all objects of one kind from an API server to a component: first a list,
// and then every change in order, until the context ends.
//
// It differs from client-go's informers in three ways. It stores no objects, so that the component
// stores only the fields that it needs. It lists in pages of a few megabytes, so that a large list
// is never in memory as a whole. And it continues within a second of the end of an outage, while a
// reflector's back-off may last half a minute.
package feed

import (
	"context"
	"errors"
	"fmt"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"math/rand/v2"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-k8s/berth/internal/kube/loglimit"
	"github.com/berth-k8s/berth/internal/pacing"
	"github.com/berth-k8s/berth/internal/quantity"
)

const (
	// pageSize is the maximum number of objects in a page of a list: a page of pods has a megabyte
	// or two, and a list needs few round trips.
	pageSize = 500
	// The interval between requests begins at firstPause and doubles up to lastPause, whatever the
	// responses are. A longer interval would delay evictions after an outage. After quickRefusals
	// consecutive refusals by the API server, the interval grows to refusedPause.
	firstPause    = 100 * time.Millisecond
	lastPause     = time.Second
	quickRefusals = 9
	refusedPause  = 8 * time.Second
	// pageTries is the maximum number of requests for a page; the first page is requested only
	// once.
	pageTries = 6
	// watchFor is the minimum duration requested for a watch. A watch that is still open
	// answerWithin after the requested duration is abandoned, because an intermediary may have
	// failed unnoticed.
	watchFor = 5 * time.Minute
	// answerWithin bounds the request for a page, and wholeWithin a list without pages. wholeWithin
	// exceeds the API server's own limit for any request (--request-timeout, a minute).
	answerWithin = 30 * time.Second
	wholeWithin  = 65 * time.Second
	// uselessAfter is the time for which watches from one version may permanently fail
	// (isPermanent) before the feed lists instead. It starts over after uselessWithout without such
	// a failure, for example in an outage.
	uselessAfter   = 30 * time.Second
	uselessWithout = 10 * time.Second
	// briefly is the minimum duration of a watch. A shorter watch without events counts as broken.
	briefly = time.Second
)

// These errors are reasons for losing a watch, other than a refusal by the API server.
var (
	errUnreadable = errors.New("an event that cannot be read")
	errBrief      = errors.New("the watch ended as soon as it began")
	errOverdue    = errors.New("the watch did not end at its timeout")
)

// Sink receives the objects. Between Listing and Listed, Seen is called for all objects; any other
// object has been deleted. If a list fails half way, Listing is called again for the next list. The
// functions are called one at a time. Keeping an object of a list keeps its whole page in memory.
// Quantities are bounded: see [quantity.BoundAll].
type Sink struct {
	Listing func()
	Listed  func()
	Seen    func(runtime.Object)
	Gone    func(runtime.Object)

	// Version, if set, is called before Listed with the list's version of the cluster.
	Version func(string)
	// Lost, if set, is called when a list fails or the watch breaks, and Back when a watch begins.
	// A watch that the server ends after the requested duration is not lost.
	Lost, Back func()
	// Fresh, if set, is called once after Source.Anew is closed: after Listed of the first list
	// that began later.
	Fresh func()
}

// SizeOf returns the encoded size of an object, or 0 if the kind is not built into Kubernetes.
func SizeOf(o runtime.Object) int {
	if sized, ok := o.(interface{ Size() int }); ok {
		return sized.Size()
	}
	return 0
}

// Run delivers all objects of the source, and their changes, to the sink until the context ends. It
// never gives up: failed requests are repeated at intervals of at most lastPause, or refusedPause
// while the API server refuses them.
//
// The functions of the sink are called in this order: Listing, Seen for each object, and Listed;
// then Seen and Gone for changes. Listing is called again if the API server cannot continue a watch
// from the last version delivered, or if Source.Anew is closed.
func Run(ctx context.Context, source Source, sink Sink) {
	f := feed{source: source, sink: sink, anew: source.Anew, key: strconv.FormatUint(rand.Uint64(), 36)}
	for f.waitTurn(ctx) {
		err := f.goOn(ctx)
		if err != nil && ctx.Err() == nil {
			f.logError(ctx, err)
			f.callSink(sink.Lost)
		}
		if err == nil && f.version == "" { // Anew is closed: a component waits for the next list
			f.pace.Reset()
		}
	}
}

// waitTurn waits until the next request may be sent, and reports whether the context allows it.
// After a watch that lasted longer than the interval, it returns immediately.
func (f *feed) waitTurn(ctx context.Context) bool {
	select {
	case <-ctx.Done():
	case <-time.After(time.Until(f.pace.Next)):
	}
	last := min(lastPause<<min(max(f.refusals-quickRefusals, 0), 8), refusedPause)
	f.pace.Sent(time.Now(), pacing.Backoff{First: firstPause, Last: last}, f.key)
	return ctx.Err() == nil
}

// feed is the state of one Run. It belongs to the goroutine of Run.
type feed struct {
	source   Source
	sink     Sink
	version  string          // version up to which the sink has all changes; "": a list is due
	anew     <-chan struct{} // the source's Anew channel, until it is closed
	fresh    bool            // Anew was closed before the current or next list
	whole    bool            // the next list is unpaged, because the last paged list expired between pages
	pace     pacing.Pace     // paces lists and watches, and repeated requests for a page
	refusals int             // consecutive refusals by the API server
	key      string          // random, so that feeds spread their requests after an outage
	useless  time.Time       // start of the permanent failures of watches from this version; zero if there are none
	refused  time.Time       // time of the last permanent failure

	complaint loglimit.Line // limits the log lines about errors returned by the API server
}

// unreached limits the log lines about errors other than responses of the API server. All feeds
// share it, because an outage affects all of them.
var unreached = new(loglimit.Line)

// goOn lists if a list is due, and then watches until the watch ends. It returns nil if the watch
// ended after the requested duration, or because of the context or Anew.
//
// Most errors leave the version unchanged, so that the next watch continues from there: a watch
// costs the API server little, while a list of all pods is expensive. A list is due only if the
// server has dropped the version, or if watches from it have permanently failed for uselessAfter.
func (f *feed) goOn(ctx context.Context) error {
	if f.version == "" {
		if err := f.listPages(ctx); err != nil {
			return fmt.Errorf("list %s: %w", f.source.Name, err)
		}
	}

	from, began := f.version, time.Now()
	err := f.watchUntilEnd(ctx)
	f.countRefusal(err)
	switch {
	case err == nil || f.version != from:
		f.useless, f.refusals = time.Time{}, 0
	case isPermanent(err):
		if f.useless.IsZero() || began.Sub(f.refused) > uselessWithout {
			f.useless = time.Now()
		}
		f.refused = time.Now()
	}

	if isForgotten(err) || isPermanent(err) && !f.useless.IsZero() && f.pace.Next.Sub(f.useless) >= uselessAfter {
		f.version, f.useless = "", time.Time{}
	}
	if err != nil {
		return fmt.Errorf("watch %s: %w", f.source.Name, err)
	}
	return nil
}

// listPages lists all objects and passes them to the sink. If it fails, the version stays empty, so
// that the list is repeated.
func (f *feed) listPages(ctx context.Context) error {
	if isClosed(f.anew) {
		f.anew, f.fresh = nil, true
	}
	f.sink.Listing()
	options := metav1.ListOptions{FieldSelector: f.source.Selector, Limit: pageSize}
	// The last list expired before all of its pages were read. A list without pages cannot expire.
	if f.whole {
		options.Limit, f.whole = 0, false
	}

	version, begun, err := Pages(ctx, options, f.getPage, f.sink.Seen)
	if err != nil {
		f.whole = begun && isForgotten(err)
		return err
	}
	f.version = version
	if f.sink.Version != nil {
		f.sink.Version(f.version)
	}
	f.sink.Listed()
	if f.fresh {
		f.fresh = false
		f.callSink(f.sink.Fresh)
	}
	return nil
}

// getPage returns a page. A page other than the first is requested up to pageTries times, so that a
// large list does not fail because of one request.
func (f *feed) getPage(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	for tries := 1; ; tries++ {
		page, err := f.sendList(ctx, options)
		if err != nil {
			f.countRefusal(err)
		}
		if err == nil || options.Continue == "" || isForgotten(err) || errors.Is(err, errLargePage) || tries == pageTries {
			return page, err
		}
		if !f.waitTurn(ctx) {
			return nil, ctx.Err()
		}
	}
}

// sendList sends one request for a page.
func (f *feed) sendList(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	within := answerWithin
	if options.Limit == 0 {
		within = wholeWithin
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	return f.source.List(ctx, options)
}

// watchUntilEnd watches until the watch ends, the context ends, Anew is closed, or the watch is
// overdue.
func (f *feed) watchUntilEnd(ctx context.Context) error {
	agreed := watchFor + rand.N(watchFor)
	watching, cancel := context.WithTimeout(ctx, agreed+answerWithin)
	defer cancel()
	if anew := f.anew; anew != nil {
		go func() { // the goroutine also interrupts the opening of the watch, which may take long: some proxies wait for the first event
			select {
			case <-anew:
				cancel()
			case <-watching.Done():
			}
		}()
	}

	err := f.followWatch(watching, agreed)
	switch {
	case ctx.Err() != nil:
		return nil
	case isClosed(f.anew):
		f.version = ""
		return nil
	case watching.Err() != nil:
		return errOverdue
	}
	return err
}

// isClosed reports whether the channel is closed. A nil channel is not closed.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// followWatch opens a watch that the server ends after the agreed time, and passes its events to
// the sink.
func (f *feed) followWatch(ctx context.Context, agreed time.Duration) error {
	seconds := int64(agreed.Seconds())
	w, err := f.source.Watch(ctx, metav1.ListOptions{
		FieldSelector:       f.source.Selector,
		ResourceVersion:     f.version,
		AllowWatchBookmarks: true,
		TimeoutSeconds:      &seconds,
	})

	if err != nil {
		return err
	}
	defer func() {
		w.Stop()
		for range w.ResultChan() { // until the goroutine that decodes events has ended
		}
	}()
	f.callSink(f.sink.Back)
	began := time.Now()

	for shown := false; ; shown = true {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case event, open := <-w.ResultChan():
			switch {
			case !open && !shown && time.Since(began) < briefly:
				return errBrief
			case !open:
				return nil
			}
			if err := f.showEvent(event); err != nil {
				return err
			}
		}
	}
}

// callSink calls a function of the sink unless it is nil.
func (f *feed) callSink(sink func()) {
	if sink != nil {
		sink()
	}
}

// showEvent passes an event to the sink, and advances the version from which the next watch
// continues. A bookmark only advances the version.
func (f *feed) showEvent(event watch.Event) error {
	switch event.Type {
	case watch.Error:
		return apierrors.FromObject(event.Object)
	case watch.Added, watch.Modified:
		f.sink.Seen(quantity.BoundAll(event.Object))
	case watch.Deleted:
		f.sink.Gone(quantity.BoundAll(event.Object))
	case watch.Bookmark:
	default:
		return fmt.Errorf("%w: of type %q", errUnreadable, event.Type)
	}

	object, err := meta.Accessor(event.Object)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnreadable, err)
	}

	f.version = object.GetResourceVersion()
	return nil
}

// Whole passes each list on as a whole. It is for kinds with few objects, and components that must
// process deletions before the existing objects.
type Whole[T runtime.Object] struct {
	Listed     func(list []T, version string)
	Seen, Gone func(T) // for changes between lists
	// Keep, if set, returns the part of an object to pass on, or false to ignore the object.
	Keep func(T) (T, bool)
}

// Sink returns a sink that collects each list. The sink holds the unfinished list, so each feed
// needs a separate one.
func (w Whole[T]) Sink() Sink {
	var list []T
	var version string
	listing := false
	keep := w.Keep
	if keep == nil {
		keep = func(o T) (T, bool) { return o, true }
	}

	return Sink{
		Listing: func() { list, listing = nil, true },
		Version: func(v string) { version = v },
		Listed: func() {
			w.Listed(list, version)
			list, listing = nil, false
		},
		Seen: func(o runtime.Object) {
			kept, ok := keep(o.(T))
			switch {
			case !ok:
			case listing:
				list = append(list, kept)
			default:
				w.Seen(kept)
			}
		},
		Gone: func(o runtime.Object) {
			if kept, ok := keep(o.(T)); ok {
				w.Gone(kept)
			}
		},
	}
}
