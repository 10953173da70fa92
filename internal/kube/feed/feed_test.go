package feed

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// api answers a feed and writes down what it asks and what its sink is told.
type api struct {
	mu    sync.Mutex
	said  []string
	began time.Time
	pages []v1.PodList       // the next lists
	watch *watch.FakeWatcher // the watch that runs
	fails error              // what the next watches fail with
	anew  chan struct{}      // of the source; made by run
	early bool               // it is closed before the feed begins
	shown Sink               // in place of the one that writes everything down
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

// current is the watch that runs.
func (a *api) current() *watch.FakeWatcher {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.watch
}

func (a *api) source() Source {
	return Source{
		Name: "pods",
		Anew: a.anew,
		List: func(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
			if len(a.pages) == 0 {
				return nil, errors.New("no list")
			}
			page := a.pages[0]
			a.pages = a.pages[1:]
			a.say("list continue=%q", o.Continue)
			return &page, nil
		},
		Watch: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
			a.mu.Lock()
			fails := a.fails
			a.mu.Unlock()
			if fails != nil {
				return nil, fails
			}
			a.say("watch from %s", o.ResourceVersion)
			w := watch.NewFake()
			a.mu.Lock()
			defer a.mu.Unlock()
			a.watch = w
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

// run lets the feed run while do happens, and returns what was said.
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

func wants(t *testing.T, said string, want ...string) {
	t.Helper()
	rest := said
	for _, w := range want {
		at := strings.Index(rest, w)
		if at < 0 {
			t.Fatalf("no %q in its place in\n%s", w, said)
		}
		rest = rest[at+len(w):]
	}
}

func TestListsInPagesThenWatches(t *testing.T) {
	a := &api{pages: []v1.PodList{page("7", "more", "a", "b"), page("7", "", "c")}}
	said := run(t, a, func() {
		a.current().Modify(pod("a", "8"))
		a.current().Delete(pod("b", "9"))
	})
	wants(t, said, "listing", "list continue=\"\"", "seen a", "seen b", "list continue=\"more\"", "seen c", "listed", "watch from 7", "back", "seen a", "gone b")
}

func TestBrokenWatchGoesOnWhereItWas(t *testing.T) {
	a := &api{pages: []v1.PodList{page("7", "", "a")}}
	said := run(t, a, func() {
		a.current().Modify(pod("a", "8"))
		a.current().Action(watch.Bookmark, pod("", "20"))
		a.current().Stop()
		time.Sleep(time.Second)
	})
	wants(t, said, "watch from 7", "seen a", "watch from 20")
	if strings.Count(said, "listing") != 1 {
		t.Errorf("listed again:\n%s", said)
	}
}

func TestForgottenVersionIsListedAgain(t *testing.T) {
	tooLarge := apierrors.NewTimeoutError("too large", 1)
	tooLarge.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}
	for _, err := range []*apierrors.StatusError{apierrors.NewResourceExpired("gone"), tooLarge} {
		a := &api{pages: []v1.PodList{page("7", "", "a"), page("30", "", "b")}}
		said := run(t, a, func() {
			a.current().Error(&err.ErrStatus)
			time.Sleep(time.Second)
		})
		wants(t, said, "watch from 7", "lost", "listing", "seen b", "watch from 30", "back")
	}
}

func TestBackWithinASecondAfterAnOutage(t *testing.T) {
	a := &api{pages: []v1.PodList{page("7", "", "a")}}
	said := run(t, a, func() {
		a.fail(errors.New("connection refused"))
		a.current().Stop()
		time.Sleep(10 * time.Minute)
		a.fail(nil)
		a.say("up again")
		time.Sleep(1500 * time.Millisecond)
	})
	wants(t, said, "lost", "10m0s up again", "watch from 7", "back")
}

// A watch may lag behind; Anew brings the newest state.
func TestAnewListsAgain(t *testing.T) {
	a := &api{pages: []v1.PodList{page("7", "", "a"), page("9", "", "b")}}
	said := run(t, a, func() {
		a.say("anew")
		close(a.anew)
		time.Sleep(time.Hour) // in the bubble's time
		a.current().Modify(pod("c", "10"))
	})
	wants(t, said, "listed", "watch from 7", "anew", "listing", "seen b", "listed", "fresh", "watch from 9", "seen c")
	if strings.Count(said, "listing") != 2 || strings.Count(said, "fresh") != 1 || strings.Contains(said, "lost") {
		t.Errorf("listed once more, and said so once, without a loss:\n%s", said)
	}
}

// A list that begins after Anew suffices; one under way does not.
func TestAnewBeforeTheFirstList(t *testing.T) {
	a := &api{early: true, pages: []v1.PodList{page("7", "", "a")}}
	said := run(t, a, func() { time.Sleep(time.Hour) })
	wants(t, said, "listing", "listed", "fresh", "watch from 7")
	if strings.Count(said, "listing") != 1 {
		t.Errorf("listed again:\n%s", said)
	}
}

// Whole tells of a list at once, with its version, and of nothing that is not kept.
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
	said := run(t, a, func() {
		for _, name := range []string{"a", "other"} {
			a.current().Modify(pod(name, "8"))
			a.current().Delete(pod(name, "9"))
		}
	})
	wants(t, said, "listed [a c] at 7", "watch from 7", "seen a", "gone a")
	if strings.Contains(said, "seen c") || strings.Contains(said, "other") {
		t.Errorf("said\n%s", said)
	}
}
