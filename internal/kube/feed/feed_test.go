// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/berth-k8s/berth/internal/kube/loglimit"
)

// api serves a feed and records its requests and the calls of its sink.
type api struct {
	mu    sync.Mutex
	said  []string
	began time.Time
	pages []v1.PodList       // the next lists
	watch *watch.FakeWatcher // the current watch
	fails error              // error of the next watches
	anew  chan struct{}      // the source's Anew channel; made by run
	early bool               // the channel is closed before the feed begins
	hangs bool               // opening a watch blocks
	brief bool               // watches end as they begin
	agree bool               // watches end after the requested time
	shown Sink               // if set, replaces the recording sink

	listing func(context.Context) error // called during each page
	asked   []metav1.ListOptions        // options of the watches
}

func (a *api) say(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.said = append(a.said, fmt.Sprintf("%v ", time.Since(a.began))+fmt.Sprintf(format, args...))
}

func (a *api) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fails = err
}

// current returns the current watch.
func (a *api) current() *watch.FakeWatcher {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.watch
}

func (a *api) source() Source {
	return Source{
		Name:     "pods",
		Selector: "spec.nodeName!=",
		Anew:     a.anew,
		List: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			if len(a.pages) == 0 {
				return nil, errors.New("no list")
			}
			page := a.pages[0]
			a.pages = a.pages[1:]
			a.say("list continue=%q limit=%d of %q", o.Continue, o.Limit, o.FieldSelector)
			if a.listing != nil {
				if err := a.listing(ctx); err != nil {
					return nil, err
				}
			}
			return &page, nil
		},
		Watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			a.mu.Lock()
			fails, hangs := a.fails, a.hangs
			a.mu.Unlock()
			switch {
			case hangs:
				<-ctx.Done()
				return nil, ctx.Err()
			case fails != nil:
				return nil, fails
			}
			a.say("watch from %s", o.ResourceVersion)
			w := watch.NewFake()
			switch {
			case a.brief:
				w.Stop()
			case a.agree:
				time.AfterFunc(time.Duration(*o.TimeoutSeconds)*time.Second, w.Stop)
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			a.watch, a.asked = w, append(a.asked, o)
			return w, nil
		},
	}
}

func (a *api) sink() Sink {
	if a.shown.Seen != nil {
		return a.shown
	}
	name := func(o runtime.Object) string { return o.(*v1.Pod).Name }
	return Sink{
		Listing: func() { a.say("listing") },
		Version: func(version string) { a.say("version %s", version) },
		Listed:  func() { a.say("listed") },
		Seen:    func(o runtime.Object) { a.say("seen %s", name(o)) },
		Gone:    func(o runtime.Object) { a.say("gone %s", name(o)) },
		Lost:    func() { a.say("lost") },
		Back:    func() { a.say("back") },
		Fresh:   func() { a.say("fresh") },
	}
}

func pod(name, version string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version}}
}

func page(version, next string, pods ...string) v1.PodList {
	list := v1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: version, Continue: next}}
	for _, name := range pods {
		list.Items = append(list.Items, *pod(name, version))
	}
	return list
}

// run runs a feed, calls do, ends the feed, and returns the recorded calls.
func run(t *testing.T, a *api, do func()) string {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a.began, a.anew = time.Now(), make(chan struct{})
		if a.early {
			close(a.anew)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); Run(ctx, a.source(), a.sink()) }()
		synctest.Wait()
		do()
		synctest.Wait()
		cancel()
		<-ended
	})
	return strings.Join(a.said, "\n")
}

func wants(t *testing.T, text string, want ...string) {
	t.Helper()
	rest := text
	for _, w := range want {
		at := strings.Index(rest, w)
		if at < 0 {
			t.Fatalf("no %q in its place in\n%s", w, text)
		}
		rest = rest[at+len(w):]
	}
}

func TestListsInPagesThenWatches(t *testing.T) {
	a := &api{pages: []v1.PodList{page("7", "more", "a", "b"), page("7", "", "c")}}
	text := run(t, a, func() {
		a.current().Modify(pod("a", "8"))
		a.current().Delete(pod("b", "9"))
	})
	wants(t, text, "listing", "list continue=\"\"", "seen a", "seen b", "list continue=\"more\"", "seen c", "version 7", "listed", "watch from 7", "back", "seen a", "gone b")
	if strings.Count(text, `limit=500 of "spec.nodeName!="`) != 2 {
		t.Errorf("not in pages of 500, or not of what is selected:\n%s", text)
	}
	asked := a.asked[0]
	if asked.FieldSelector != "spec.nodeName!=" || !asked.AllowWatchBookmarks || asked.TimeoutSeconds == nil || *asked.TimeoutSeconds < 300 || *asked.TimeoutSeconds > 600 {
		t.Errorf("watched with %+v", asked)
	}
}

// TestQuantitiesAreBounded verifies that quantities that would take seconds to compare are bounded
// in lists, changes and deletions.
func TestQuantitiesAreBounded(t *testing.T) {
	huge := func(version string) *v1.Pod {
		p := pod("a", version)
		p.Spec.Overhead = v1.ResourceList{v1.ResourceMemory: resource.MustParse("1e60000000")}
		return p
	}
	a := &api{pages: []v1.PodList{{ListMeta: metav1.ListMeta{ResourceVersion: "7"}, Items: []v1.Pod{*huge("7")}}}}
	say := func(o runtime.Object) { a.say("overhead %s", o.(*v1.Pod).Spec.Overhead.Memory()) }
	a.shown = Sink{Listing: func() {}, Listed: func() {}, Seen: say, Gone: say}
	text := run(t, a, func() {
		a.current().Modify(huge("8"))
		a.current().Delete(huge("9"))
	})
	if n := strings.Count(text, "overhead 1e270"); n != 3 {
		t.Errorf("%d of 3 quantities are bounded:\n%s", n, text)
	}
}

func TestBrokenWatchGoesOnWhereItWas(t *testing.T) {
	a := &api{pages: []v1.PodList{page("7", "", "a")}}
	text := run(t, a, func() {
		a.current().Modify(pod("a", "8"))
		a.current().Action(watch.Bookmark, pod("", "20"))
		a.current().Stop()
		time.Sleep(time.Second)
	})
	wants(t, text, "watch from 7", "seen a", "watch from 20")
	if strings.Count(text, "listing") != 1 || strings.Count(text, "seen") != 2 {
		t.Errorf("listed again, or a bookmark was shown:\n%s", text)
	}
}

func TestForgottenVersionIsListedAgain(t *testing.T) {
	tooLarge := apierrors.NewTimeoutError("too large", 1)
	tooLarge.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}
	for _, err := range []*apierrors.StatusError{apierrors.NewResourceExpired("gone"), tooLarge} {
		a := &api{pages: []v1.PodList{page("7", "", "a"), page("30", "", "b")}}
		text := run(t, a, func() {
			a.current().Error(&err.ErrStatus)
			time.Sleep(time.Second)
		})
		wants(t, text, "watch from 7", "lost", "listing", "seen b", "watch from 30", "back")
	}
}

func TestBackWithinASecondAfterAnOutage(t *testing.T) {
	a := &api{pages: []v1.PodList{page("7", "", "a")}}
	text := run(t, a, func() {
		a.fail(errRefused)
		a.current().Stop()
		time.Sleep(10 * time.Minute)
		a.fail(nil)
		a.say("up again")
		time.Sleep(1500 * time.Millisecond)
	})
	wants(t, text, "lost", "10m0s up again", "watch from 7", "back")
}

// TestAnewListsAgain verifies that the feed lists again immediately, and only once, when Anew is
// closed.
func TestAnewListsAgain(t *testing.T) {
	a := &api{agree: true, pages: []v1.PodList{page("7", "", "a"), page("9", "", "b")}}
	text := run(t, a, func() {
		a.say("anew")
		close(a.anew)
		time.Sleep(time.Hour) // in virtual time
		a.current().Modify(pod("c", "10"))
	})
	wants(t, text, "listed", "watch from 7", "0s anew", "0s listing", "seen b", "0s listed", "fresh", "watch from 9", "seen c")
	if strings.Count(text, "listing") != 2 || strings.Count(text, "fresh") != 1 || strings.Contains(text, "lost") {
		t.Errorf("listed once more, and said so once, without a loss:\n%s", text)
	}
}

// TestAnewBeforeTheFirstList verifies that the first list counts as fresh if Anew was closed before
// it began.
func TestAnewBeforeTheFirstList(t *testing.T) {
	a := &api{early: true, pages: []v1.PodList{page("7", "", "a")}}
	text := run(t, a, func() { time.Sleep(time.Hour) })
	wants(t, text, "listing", "listed", "fresh", "watch from 7")
	if strings.Count(text, "listing") != 1 {
		t.Errorf("listed again:\n%s", text)
	}
}

// TestWholeCollectsLists verifies that Whole passes on a list in one call, with its version, and
// without objects rejected by Keep.
func TestWholeCollectsLists(t *testing.T) {
	a := &api{pages: []v1.PodList{page("7", "more", "a", "other"), page("7", "", "c")}}
	names := func(pods []*v1.Pod) (all []string) {
		for _, p := range pods {
			all = append(all, p.Name)
		}
		return all
	}
	a.shown = Whole[*v1.Pod]{
		Keep:   func(p *v1.Pod) (*v1.Pod, bool) { return p, p.Name != "other" },
		Listed: func(list []*v1.Pod, version string) { a.say("listed %v at %s", names(list), version) },
		Seen:   func(p *v1.Pod) { a.say("seen %s", p.Name) },
		Gone:   func(p *v1.Pod) { a.say("gone %s", p.Name) },
	}.Sink()
	text := run(t, a, func() {
		for _, name := range []string{"a", "other"} {
			a.current().Modify(pod(name, "8"))
			a.current().Delete(pod(name, "9"))
		}
	})
	wants(t, text, "listed [a c] at 7", "watch from 7", "seen a", "gone a")
	if strings.Contains(text, "seen c") || strings.Contains(text, "other") {
		t.Errorf("said\n%s", text)
	}
}

// TestListThatFailsHalfWayBeginsAgain verifies that an expired list is repeated without pages, and
// that no watch starts from the version of the failed list.
func TestListThatFailsHalfWayBeginsAgain(t *testing.T) {
	a := &api{pages: []v1.PodList{page("7", "more", "a"), page("7", "", "b"), page("9", "", "c")}}
	pages := 0
	a.listing = func(context.Context) error {
		if pages++; pages == 2 {
			return apierrors.NewResourceExpired("the continue token is too old")
		}
		return nil
	}
	text := run(t, a, func() { time.Sleep(time.Second) })
	// The second list has no pages, so it cannot expire.
	wants(t, text, "listing", "seen a", "lost", "listing", `continue="" limit=0`, "seen c", "listed", "watch from 9", "back")
	if strings.Contains(text, "watch from 7") || strings.Count(text, "listed") != 1 {
		t.Errorf("a list that failed counts:\n%s", text)
	}
}

// TestWatchesThatAreOfNoUseAreGivenUp verifies that the feed lists if every watch from the same
// version ends with a permanent error, but not if the API server is only busy or unreachable.
func TestWatchesThatAreOfNoUseAreGivenUp(t *testing.T) {
	for _, c := range []struct {
		err   error
		lists int
	}{
		{apierrors.NewBadRequest("no such version"), 2},
		{apierrors.NewInternalError(errors.New("unable to decode an event from the watch stream")), 2},
		{fmt.Errorf("%w: of type X", errUnreadable), 2},
		{apierrors.NewServiceUnavailable("shutting down"), 1},
		{apierrors.NewTooManyRequests("overloaded", 1), 1},
		{apierrors.NewGenericServerResponse(http.StatusBadGateway, "get", schema.GroupResource{}, "", "", 0, true), 1},
		{errRefused, 1},
	} {
		a := &api{pages: []v1.PodList{page("7", "", "a"), page("30", "", "b")}}
		text := run(t, a, func() {
			a.fail(c.err)
			a.current().Stop()
			time.Sleep(uselessAfter - time.Second) // in virtual time
			a.say("not yet")
			time.Sleep(time.Second + refusedPause)
			a.fail(nil)
			time.Sleep(refusedPause)
		})
		if n := strings.Count(text, "listing"); n != c.lists {
			t.Errorf("%v: %d lists, want %d:\n%s", c.err, n, c.lists, text)
		}
		if c.lists > 1 {
			wants(t, text, "listed", "not yet", "listing", "seen b", "watch from 30", "back")
		}
	}
}

// TestPageThatFailsIsAskedForAgain verifies that only the failed page is requested again, and that
// the list starts over after six failures.
func TestPageThatFailsIsAskedForAgain(t *testing.T) {
	for _, fails := range []int{3, 6} {
		a := &api{pages: []v1.PodList{page("7", "more", "a")}}
		for range fails {
			a.pages = append(a.pages, v1.PodList{})
		}
		a.pages = append(a.pages, page("7", "", "b"))
		pages := 0
		a.listing = func(context.Context) error {
			if pages++; 1 < pages && pages < 2+fails {
				return apierrors.NewTooManyRequests("overloaded", 1)
			}
			return nil
		}
		text := run(t, a, func() { time.Sleep(10 * time.Second) })
		wants(t, text, "listing", "seen a", `continue="more"`, `continue="more"`, `continue="more"`, "seen b", "listed", "watch from 7")
		if lists := strings.Count(text, "listing"); lists != 1+fails/6 {
			t.Errorf("after %d failures, %d lists:\n%s", fails, lists, text)
		}
		if strings.Contains(text, "\n0s seen b") {
			t.Errorf("asked again without a pause:\n%s", text)
		}
	}
}

// TestPageThatHangsIsAskedForAgain verifies that a request for a page that hangs is abandoned after
// half a minute.
func TestPageThatHangsIsAskedForAgain(t *testing.T) {
	a := &api{pages: []v1.PodList{page("7", "", "a"), page("9", "", "b")}}
	pages := 0
	a.listing = func(ctx context.Context) error {
		if pages++; pages == 1 {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}
	wants(t, run(t, a, func() { time.Sleep(time.Minute) }), "30s lost", "listing", "seen b", "listed", "watch from 9")
}

// TestAnewDuringAList verifies that if Anew is closed during a list, which may be older, another
// list follows and counts as fresh.
func TestAnewDuringAList(t *testing.T) {
	a := &api{pages: []v1.PodList{page("7", "", "a"), page("9", "", "b")}}
	closed := false
	a.listing = func(context.Context) error {
		if !closed {
			closed = true
			close(a.anew)
		}
		return nil
	}
	text := run(t, a, func() { time.Sleep(time.Minute) })
	wants(t, text, "seen a", "listed", "seen b", "listed", "fresh", "watch from 9")
	if strings.Count(text, "fresh") != 1 || strings.Count(text, "listing") != 2 {
		t.Errorf("fresh once, after the second of two lists:\n%s", text)
	}
}

// TestListAfterAnewMayFail verifies that if the list after Anew fails, the next complete list
// counts as fresh, and no later one.
func TestListAfterAnewMayFail(t *testing.T) {
	a := &api{pages: []v1.PodList{page("7", "", "a"), page("8", "", "a"), page("9", "", "b"), page("12", "", "c")}}
	lists := 0
	a.listing = func(context.Context) error {
		if lists++; lists == 2 {
			return errors.New("reset")
		}
		return nil
	}
	text := run(t, a, func() {
		close(a.anew)
		time.Sleep(time.Minute)
		a.current().Error(&apierrors.NewResourceExpired("gone").ErrStatus)
		time.Sleep(time.Minute)
	})
	wants(t, text, "listed", "listing", "lost", "listing", "seen b", "listed", "fresh", "watch from 9", "lost", "seen c", "watch from 12")
	if strings.Count(text, "fresh") != 1 {
		t.Errorf("fresh more than once:\n%s", text)
	}
}

// TestWatchThatEndsInOrderIsNotLost verifies that a watch that the server ends after the requested
// time does not count as lost, and that the next watch begins immediately.
func TestWatchThatEndsInOrderIsNotLost(t *testing.T) {
	a := &api{pages: []v1.PodList{page("7", "", "a")}}
	text := run(t, a, func() {
		for range 20 {
			time.Sleep(5 * time.Minute)
			a.current().Stop()
			time.Sleep(100 * time.Millisecond)
		}
	})
	if n := strings.Count(text, "watch from"); n != 21 || strings.Contains(text, "lost") {
		t.Errorf("%d watches in a hundred minutes, want 21, and none lost:\n%s", n, text)
	}
}

// transport serves lists, and fails watches.
type transport struct {
	failure error
	watches int
}

func (tr *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Query().Get("watch") != "" {
		tr.watches++
		return nil, tr.failure
	}
	body := `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[]}`
	return &http.Response{
		StatusCode: http.StatusOK, Request: r, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)),
	}, nil
}

// TestWatchThatIsNotOpenedIsLost verifies that a watch counts as lost, however the connection to
// the API server fails. If the connection ends or times out, client-go returns an empty watch
// instead of an error.
func TestWatchThatIsNotOpenedIsLost(t *testing.T) {
	for name, failure := range map[string]error{
		"refused": errRefused, "ended": io.EOF, "reset": errors.New("connection reset by peer"), "timed out": os.ErrDeadlineExceeded,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tr := &transport{failure: failure}
				client := kubernetes.NewForConfigOrDie(&rest.Config{Host: "http://api", Transport: tr, QPS: -1})
				source := Of(client.CoreV1().RESTClient(), "", "pods", func() runtime.Object { return &v1.PodList{} })
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				lost, back := 0, 0
				Run(ctx, source, Sink{
					Listing: func() {}, Listed: func() {}, Seen: func(runtime.Object) {}, Gone: func(runtime.Object) {},
					Lost: func() { lost++ }, Back: func() { back++ },
				})
				most := 80
				if name == "refused" {
					most = 100
				}
				if lost == 0 || back > 0 || tr.watches > most {
					t.Errorf("lost %d times and back %d times, after %d requests in a minute", lost, back, tr.watches)
				}
			})
		})
	}
}

// TestBriefWatchesAreLost verifies that if the API server or a proxy ends each watch immediately,
// the watches count as lost, and are repeated with pauses.
func TestBriefWatchesAreLost(t *testing.T) {
	a := &api{brief: true, pages: slices.Repeat([]v1.PodList{page("7", "", "a")}, 30)}
	text := run(t, a, func() { time.Sleep(10 * time.Minute) })
	if n := strings.Count(text, "watch from 7"); n < 70 || n > 110 {
		t.Errorf("%d watches in ten minutes", n)
	}
	wants(t, text, "back", "lost", "watch from 7")
}

// TestWhatBriefWatchesDoNotShowIsListed verifies that the feed lists if watches keep ending
// immediately, because they may never deliver changes.
func TestWhatBriefWatchesDoNotShowIsListed(t *testing.T) {
	a := &api{brief: true, pages: []v1.PodList{page("7", "", "a"), page("9", "", "b")}}
	text := run(t, a, func() {
		time.Sleep(uselessAfter - time.Second) // in virtual time
		a.say("not yet")
		time.Sleep(time.Second + refusedPause)
	})
	wants(t, text, "listed", "not yet", "listing", "seen b", "watch from 9")
}

// TestAnOutageIsNoReasonToList verifies that an outage causes no list, whatever errors the API
// server returned before the outage or at its start.
func TestAnOutageIsNoReasonToList(t *testing.T) {
	a := &api{pages: []v1.PodList{page("7", "", "a"), page("9", "", "b")}}
	text := run(t, a, func() {
		for _, each := range []struct {
			err   error
			lasts time.Duration
		}{
			{apierrors.NewInternalError(errors.New("etcd")), 5 * time.Second},
			{errRefused, 2 * uselessAfter},
			{apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("not yet")), 5 * time.Second},
			{nil, 5 * time.Second},
		} {
			a.fail(each.err)
			a.current().Stop()
			time.Sleep(each.lasts) // in virtual time
		}
	})
	if n := strings.Count(text, "listing"); n != 1 {
		t.Errorf("%d lists:\n%s", n, text)
	}
	wants(t, text, "watch from 7", "back", "lost", "watch from 7", "back")
}

// TestWatchThatDoesNotEndIsLost verifies that a watch that is still open after the requested time
// is replaced by another one.
func TestWatchThatDoesNotEndIsLost(t *testing.T) {
	a := &api{pages: []v1.PodList{page("7", "", "a")}}
	text := run(t, a, func() {
		a.current().Modify(pod("a", "8"))
		time.Sleep(5*time.Minute + 29*time.Second)
		a.say("no earlier")
		time.Sleep(5*time.Minute + 2*time.Second)
		a.current().Modify(pod("a", "9"))
	})
	wants(t, text, "watch from 7", "no earlier", "lost", "watch from 8", "back", "seen a")
	if strings.Count(text, "lost") != 1 || strings.Count(text, "listing") != 1 {
		t.Errorf("lost once, and listed once:\n%s", text)
	}
}

// TestAnewWhileAWatchIsOpened verifies that Anew takes effect while a watch is being opened. Some
// proxies delay the response until there is an event.
func TestAnewWhileAWatchIsOpened(t *testing.T) {
	a := &api{hangs: true, pages: []v1.PodList{page("7", "", "a"), page("9", "", "b")}}
	text := run(t, a, func() {
		a.mu.Lock()
		a.hangs = false
		a.mu.Unlock()
		time.Sleep(time.Minute)
		a.say("anew")
		close(a.anew)
		time.Sleep(time.Second)
	})
	wants(t, text, "listed", "1m0s anew", "listing", "seen b", "listed", "fresh", "watch from 9")
	if strings.Contains(text, "lost") {
		t.Errorf("a loss:\n%s", text)
	}
}

// TestNewFailureIsFollowedUpAtOnce verifies that after a recovery, a new failure is retried
// immediately, even if there was a long outage before.
func TestNewFailureIsFollowedUpAtOnce(t *testing.T) {
	a := &api{pages: []v1.PodList{page("7", "", "a")}}
	text := run(t, a, func() {
		a.fail(errRefused)
		a.current().Stop()
		time.Sleep(time.Minute)
		a.fail(nil)
		time.Sleep(10 * time.Second)
		a.say("fails")
		a.current().Error(&apierrors.NewInternalError(errors.New("etcd")).ErrStatus)
		time.Sleep(100 * time.Millisecond)
		a.say("later")
	})
	wants(t, text, "fails", "lost", "watch from 7", "back", "later")
}

// TestPausesDouble verifies that pauses between failed requests double from a tenth of a second to
// a second, and differ between feeds.
func TestPausesDouble(t *testing.T) {
	attempts := func(within time.Duration) (n int) {
		a := &api{pages: []v1.PodList{}}
		a.shown = Sink{Listing: func() { n++ }, Seen: func(runtime.Object) {}}
		run(t, a, func() { time.Sleep(within) })
		return n
	}
	if n := attempts(time.Second); n < 4 || n > 6 {
		t.Errorf("%d attempts in the first second", n)
	}
	if n := attempts(10 * time.Minute); n < 550 || n > 800 {
		t.Errorf("%d attempts in ten minutes of outage", n)
	}
	same := map[time.Duration]bool{}
	for range 5 {
		var second time.Time
		a := &api{}
		a.shown = Sink{Listing: func() { second = time.Now() }, Seen: func(runtime.Object) {}}
		run(t, a, func() { time.Sleep(150 * time.Millisecond) })
		same[second.Sub(a.began)] = true
	}
	if len(same) < 2 {
		t.Errorf("feeds ask at the same times: %v", same)
	}
}

// TestRequestsAreSpacedWhateverTheResponses verifies that a feed sends no more than 20 requests of
// a kind per minute while the API server refuses them, and no more than 80 if each watch makes
// progress before it ends.
func TestRequestsAreSpacedWhateverTheResponses(t *testing.T) {
	for name, then := range map[string]func(a *api){
		"each watch shows a change, and ends":    func(a *api) { a.current().Modify(pod("a", "8")); a.current().Stop() },
		"each watch shows a bookmark, and ends":  func(a *api) { a.current().Action(watch.Bookmark, pod("", "8")); a.current().Stop() },
		"each watch ends after a second":         func(a *api) { time.Sleep(1100 * time.Millisecond); a.current().Stop() },
		"the version of each list is forgotten":  func(a *api) { a.current().Error(&apierrors.NewResourceExpired("gone").ErrStatus) },
		"each watch ends with an internal error": func(a *api) { a.current().Error(&apierrors.NewInternalError(errors.New("etcd")).ErrStatus) },
	} {
		a := &api{pages: slices.Repeat([]v1.PodList{page("7", "", "a")}, 100)}
		said := run(t, a, func() {
			for last := (*watch.FakeWatcher)(nil); time.Since(a.began) < time.Minute; time.Sleep(10 * time.Millisecond) {
				if w := a.current(); w != nil && w != last {
					last = w
					then(a)
				}
			}
		})
		fewest, most := 40, 80
		if strings.Contains(said, "lost") {
			fewest, most = 15, 20
		}
		if lists, watches := strings.Count(said, "list continue"), strings.Count(said, "watch from"); lists > most || watches > most || watches < fewest {
			t.Errorf("%s: %d lists and %d watches within a minute", name, lists, watches)
		}
	}

	a := &api{}
	a.listing = func(context.Context) error {
		a.pages = append(a.pages, page("7", "more", "a"))
		if strings.Contains(a.said[len(a.said)-1], `"more"`) {
			return apierrors.NewInternalError(errors.New("etcd"))
		}
		return nil
	}
	a.pages = append(a.pages, page("7", "more", "a"))
	said := run(t, a, func() { time.Sleep(time.Minute) })
	if first, second := strings.Count(said, `continue=""`), strings.Count(said, `continue="more"`); first > 20 || second > 20 || second < 10 {
		t.Errorf("%d requests for the first page within a minute, and %d for the second", first, second)
	}
}

// TestFeedEndsAtOnce verifies that a feed ends immediately during a pause, a list or a watch,
// closes its watch, and makes no further calls of the sink.
func TestFeedEndsAtOnce(t *testing.T) {
	for _, during := range []string{"pause", "list", "watch"} {
		synctest.Test(t, func(t *testing.T) {
			a := &api{began: time.Now(), pages: []v1.PodList{page("7", "", "a")}}
			switch during {
			case "pause":
				a.pages = nil
			case "list":
				a.listing = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() { defer close(ended); Run(ctx, a.source(), a.sink()) }()
			time.Sleep(10 * time.Second)
			synctest.Wait()
			cancel()
			said, at := len(a.said), time.Now()
			<-ended
			if took := time.Since(at); took > 0 || len(a.said) > said {
				t.Errorf("%s: ended after %v, and said %v", during, took, a.said[said:])
			}
			if w := a.current(); w != nil && !w.IsStopped() {
				t.Errorf("%s: the watch is still open", during)
			}
		})
	}
}

// TestUnknownEventsBreakTheWatch verifies that an event of unknown type breaks the watch, because
// its content would be lost, and that the next watch begins before this event.
func TestUnknownEventsBreakTheWatch(t *testing.T) {
	a := &api{pages: []v1.PodList{page("7", "", "a")}}
	text := run(t, a, func() {
		a.current().Add(pod("b", "8"))
		a.current().Action("PATCHED", pod("c", "9"))
		time.Sleep(time.Second)
	})
	wants(t, text, "seen b", "lost", "watch from 8", "back")
}

// TestOutageIsOneLine verifies that an outage causes one log line, whatever the number of feeds,
// that a dropped version causes none, and that an error returned by the API server causes one line
// per feed.
func TestOutageIsOneLine(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
	}{
		{errRefused, 1},
		{apierrors.NewResourceExpired("too old resource version"), 0},
		{apierrors.NewForbidden(v1.Resource("pods"), "", errors.New("no")), 3},
	} {
		unreached = new(loglimit.Line)
		log := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(0)))
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(klog.NewContext(t.Context(), log), 5*time.Second)
			defer cancel()
			var running sync.WaitGroup
			for range 3 {
				a := &api{began: time.Now(), fails: c.err, listing: func(context.Context) error { return nil }}
				for range 1000 {
					a.pages = append(a.pages, page("7", ""))
				}
				running.Go(func() { Run(ctx, a.source(), a.sink()) })
			}
			running.Wait()
		})
		if n := len(log.GetSink().(ktesting.Underlier).GetBuffer().Data()); n != c.want {
			t.Errorf("%v: %d lines of three feeds, want %d", c.err, n, c.want)
		}
	}
}

// TestClientAsksOnce verifies that client-go does not retry requests, which are paced by the feed.
func TestClientAsksOnce(t *testing.T) {
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Path+" "+r.URL.Query().Get("watch"))
		w.Header().Set("Retry-After", "0")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer server.Close()
	client := kubernetes.NewForConfigOrDie(&rest.Config{Host: server.URL})
	source := Of(client.CoreV1().RESTClient(), "shop", "pods", func() runtime.Object { return &v1.PodList{} })
	if _, err := source.List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("a refused list is no error")
	}
	if _, err := source.Watch(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("a refused watch is no error")
	}
	if got := fmt.Sprint(asked); got != "[/api/v1/namespaces/shop/pods  /api/v1/namespaces/shop/pods true]" {
		t.Errorf("asked for %s", got)
	}
}

// TestWholeBeginsEachListAnew verifies that objects of a failed list are not in the next list, and
// that all objects are passed on without Keep.
func TestWholeBeginsEachListAnew(t *testing.T) {
	a := &api{pages: []v1.PodList{page("7", "more", "a"), page("7", "", "b"), page("9", "", "c")}}
	pages := 0
	a.listing = func(context.Context) error {
		if pages++; pages == 2 {
			return apierrors.NewResourceExpired("the continue token is too old")
		}
		return nil
	}
	var lists [][]*v1.Pod
	a.shown = Whole[*v1.Pod]{
		Listed: func(list []*v1.Pod, _ string) { lists = append(lists, list) },
		Seen:   func(p *v1.Pod) { a.say("seen %s", p.Name) },
		Gone:   func(p *v1.Pod) { a.say("gone %s", p.Name) },
	}.Sink()
	text := run(t, a, func() {
		time.Sleep(time.Second)
		a.current().Add(pod("d", "10"))
	})
	if len(lists) != 1 || len(lists[0]) != 1 || lists[0][0].Name != "c" {
		t.Errorf("listed %v", lists)
	}
	wants(t, text, "watch from 9", "seen d")
}

// TestWatchesThatGoOnAreOfUse verifies that the feed does not list if each watch makes progress
// before it fails.
func TestWatchesThatGoOnAreOfUse(t *testing.T) {
	a := &api{pages: []v1.PodList{page("7", "", "a")}}
	text := run(t, a, func() {
		for i := range 60 {
			a.current().Modify(pod("a", fmt.Sprint(8+i)))
			a.current().Error(&apierrors.NewInternalError(errors.New("unable to decode an event")).ErrStatus)
			time.Sleep(lastPause)
		}
	})
	wants(t, text, "watch from 7", "watch from 8", "watch from 66", "watch from 67")
	if strings.Count(text, "listing") != 1 {
		t.Errorf("listed again:\n%s", text)
	}
}

// TestAWholeListTakesLonger verifies that a list without pages may take as long as the API server
// allows for any request.
func TestAWholeListTakesLonger(t *testing.T) {
	a := &api{pages: []v1.PodList{page("7", "more", "a"), page("7", "", "b"), page("9", "", "c"), page("11", "", "d")}}
	pages := 0
	a.listing = func(ctx context.Context) error {
		switch pages++; pages {
		case 2:
			return apierrors.NewResourceExpired("the continue token is too old")
		case 3:
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}
	text := run(t, a, func() { time.Sleep(5 * time.Minute) })
	wants(t, text, "lost", `continue="" limit=0`, "1m5", "lost", `continue="" limit=500`, "seen d", "listed", "watch from 11")
}

// TestWholeKeepsNothing verifies that Whole retains no objects of a list after passing it on.
func TestWholeKeepsNothing(t *testing.T) {
	sink := Whole[*v1.Pod]{Listed: func([]*v1.Pod, string) {}, Seen: func(*v1.Pod) {}, Gone: func(*v1.Pod) {}}.Sink()
	sink.Listing()
	large := pod("a", "7")
	held := weak.Make(large)
	sink.Seen(large)
	large = nil
	sink.Listed()
	goruntime.GC()
	if held.Value() != nil {
		t.Error("an object of a list that is over is held")
	}
	goruntime.KeepAlive(sink)
}

// errRefused is the error of a refused connection.
var errRefused = fmt.Errorf("dial tcp 127.0.0.1:6443: %w", syscall.ECONNREFUSED)
