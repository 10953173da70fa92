// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package feed shows a component all objects of one kind in an API server: a list, then every
// change in order, for as long as the context lasts.
//
// It differs from client-go's informers in three ways relevant to a component with its own memory
// and a need for speed: it keeps no objects, so that the component keeps only the necessary; it
// lists in pages of a few megabytes, so that a large list is never in memory as a whole; and it is
// back within a second of an outage, while a reflector's back-off may last half a minute.
package feed

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/kube/loglimit"
	"github.com/berth-k8s/berth/internal/pacing"
	"github.com/berth-k8s/berth/internal/quantity"
)

const (
	// pageSize is the maximum number of objects in a page of a list: a megabyte or two of pods, and
	// few enough round trips.
	pageSize = 500
	// The interval between requests begins at firstPause and doubles up to lastPause, whatever the
	// responses are. A longer interval would delay evictions after an outage. After quickRefusals
	// consecutive refusals by the API server, the interval grows to refusedPause.
	firstPause    = 100 * time.Millisecond
	lastPause     = time.Second
	quickRefusals = 10
	refusedPause  = 8 * time.Second
	// pageTries bounds the requests for a page after the first one.
	pageTries = 6
	// watchFor is the minimum time after which the server ends a watch. A watch still open
	// answerWithin after that is given up: an intermediary has died unnoticed.
	watchFor = 5 * time.Minute
	// answerWithin bounds a page of a list, and wholeWithin a list without pages: a little longer
	// than the API server takes for any request (--request-timeout, a minute).
	answerWithin = 30 * time.Second
	wholeWithin  = 65 * time.Second
	// uselessAfter bounds the time during which watches from one version may be refused, or show
	// nothing readable, before the feed lists instead. An interruption of that state, as by an
	// outage, resets it.
	uselessAfter   = 30 * time.Second
	uselessWithout = 10 * time.Second
	// briefly is the minimum duration of a watch ended by the server as agreed.
	briefly = time.Second
)

// Reasons for losing a watch other than a refusal by the API server.
var (
	errUnreadable = errors.New("an event that cannot be read")
	errUnopened   = errors.New("the connection ended, or timed out, before the watch began")
	errBrief      = errors.New("the watch ended as soon as it began")
	errOverdue    = errors.New("the watch did not end when it was to end")
)

// Sink receives the objects. Between Listing and Listed, Seen gets all objects; objects not seen
// have been deleted. A list that fails half way, for good, restarts with Listing. The functions are
// called one at a time. Keeping an object of a list keeps its whole page in memory. Quantities are
// bounded: see [quantity.BoundAll].
type Sink struct {
	Listing func()
	Listed  func()
	Seen    func(runtime.Object)
	Gone    func(runtime.Object)

	// Version, if set, is called before Listed with the list's version of the cluster.
	Version func(string)
	// Lost, if set, is called when the watch is broken, Back when changes are seen again. A watch
	// ended by the server as agreed is not lost.
	Lost, Back func()
	// Fresh, if set, is called once: after Listed of the first list begun after the closing of
	// Source.Anew.
	Fresh func()
}

// SizeOf returns the encoded size of an object; 0 if it is of no built-in kind.
func SizeOf(o runtime.Object) int {
	if sized, ok := o.(interface{ Size() int }); ok {
		return sized.Size()
	}
	return 0
}

// Run shows the sink everything of the source, until the context ends. It never gives up: it
// repeats requests at intervals of at most lastPause, whatever the responses are, and of at most
// refusedPause while the API server refuses them.
//
// The order for the sink is: Listing, Seen for each object, Listed; then Seen and Gone for changes;
// and Listing again if the API server can no longer continue from the last version seen, or on
// request by Source.Anew.
func Run(ctx context.Context, source Source, sink Sink) {
	f := feed{source: source, sink: sink, anew: source.Anew, key: strconv.FormatUint(rand.Uint64(), 36)}
	for f.waitTurn(ctx) {
		err := f.goOn(ctx)
		if err != nil && ctx.Err() == nil {
			f.logError(ctx, err)
			f.callSink(sink.Lost)
		}
		if err == nil && f.version == "" { // requested by Anew: another component waits for this list
			f.pace.Reset()
		}
	}
}

// waitTurn waits until the next request may be sent, and reports whether the context allows it. A
// watch that lasted longer than the interval is followed up immediately.
func (f *feed) waitTurn(ctx context.Context) bool {
	select {
	case <-ctx.Done():
	case <-time.After(time.Until(f.pace.Next)):
	}
	last := min(lastPause<<min(max(f.refusals-quickRefusals, 0), 8), refusedPause)
	f.pace.Sent(time.Now(), pacing.Backoff{First: firstPause, Last: last}, f.key)
	return ctx.Err() == nil
}

// countRefusal counts consecutive refusals. A lost connection is not a refusal: such requests cost
// the API server nothing.
func (f *feed) countRefusal(err error) {
	if errors.Is(err, errUnreadable) || errors.Is(err, errBrief) || apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
		f.refusals++
		return
	}
	f.refusals = 0
}

// feed is the state of one Run. It belongs to the goroutine of Run.
type feed struct {
	source   Source
	sink     Sink
	version  string          // up to which the sink has seen everything; "": it must list
	anew     <-chan struct{} // the source's Anew channel, until it is closed
	fresh    bool            // the current or next list is requested by Anew
	whole    bool            // the next list is unpaged, because the last paged list took too long
	pace     pacing.Pace     // of the lists and watches, and of repeated requests for a page
	refusals int             // consecutive, by the API server
	key      string          // random, so that feeds spread their requests after an outage
	useless  time.Time       // time since which watches from this version have been useless; zero if they are not
	refused  time.Time       // end of the last useless watch

	complaint loglimit.Line // about the API server's responses
}

// unreached is shared by all feeds, which lose the API server together.
var unreached = new(loglimit.Line)

// goOn lists if it must, and then watches until the watch ends. It returns nil for a watch that
// ended as agreed.
//
// Most errors leave the version unchanged, so that the next watch continues there: that costs the
// API server little, while a list of all pods costs it much. A list is due when the server has
// forgotten the version, and when watches from it have been useless for uselessAfter.
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

// logError logs an error, at level 2 if a similar one has been logged recently, or if a new list is
// the whole remedy.
func (f *feed) logError(ctx context.Context, err error) {
	log := klog.FromContext(ctx)
	complaint := unreached
	if apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
		complaint = &f.complaint
	}
	if isForgotten(err) || !complaint.Due() {
		log = log.V(2)
	}
	log.Info("Watch interrupted, will go on", "of", f.source.Name, "err", err)
}

// isForgotten reports whether the server has dropped the version at which a watch should continue
// (410), or, restored from a backup or replaced, has not reached it yet. Only a list helps.
func isForgotten(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) ||
		apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
}

// isPermanent reports whether another watch from the same version may end with the same error
// forever: the API server cannot read the changes to show, or does not serve the watch at all, or
// an intermediary ends each watch immediately. Errors of a busy or absent server are not permanent.
func isPermanent(err error) bool {
	if errors.Is(err, errUnreadable) || errors.Is(err, errBrief) {
		return true
	}
	if status := apierrors.APIStatus(nil); errors.As(err, &status) && status.Status().Code == http.StatusBadGateway {
		return false // a proxy does not reach the API server
	}
	switch apierrors.ReasonForError(err) {
	case metav1.StatusReasonUnknown, metav1.StatusReasonTimeout, metav1.StatusReasonServerTimeout, metav1.StatusReasonTooManyRequests,
		metav1.StatusReasonServiceUnavailable:
		return false
	}
	return true
}

// listPages lists and shows everything. After a failed list the version stays "", so that it is
// restarted.
func (f *feed) listPages(ctx context.Context) error {
	if isClosed(f.anew) {
		f.anew, f.fresh = nil, true
	}
	f.sink.Listing()
	options := metav1.ListOptions{FieldSelector: f.source.Selector, Limit: pageSize}
	// The pages of the last list expired before all were read. An unpaged list cannot expire.
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

// getPage returns a page. After the first page, a failed one is requested again a few times, so
// that a large list is not restarted because of one request.
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

// watchUntilEnd watches until the watch ends, or must end: because of the context, of Anew, or
// because the server should have ended it.
func (f *feed) watchUntilEnd(ctx context.Context) error {
	agreed := watchFor + rand.N(watchFor)
	watching, cancel := context.WithTimeout(ctx, agreed+answerWithin)
	defer cancel()
	if anew := f.anew; anew != nil {
		go func() { // opening a watch may also take long: some proxies wait for the first event
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

// isClosed reports whether the channel is closed. A nil channel is not.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// followWatch opens a watch to be ended by the server after the agreed time, and shows its events.
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
	defer w.Stop()
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

// callSink calls a possibly nil function of the sink.
func (f *feed) callSink(sink func()) {
	if sink != nil {
		sink()
	}
}

// showEvent shows an event and advances the version, from where the next watch continues. A
// bookmark only advances it.
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
