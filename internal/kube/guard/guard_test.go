package guard

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// cluster is an API server that knows the token "good" and allows "reader" everything.
func cluster() (g *Guard, asked *atomic.Int64) {
	asked = &atomic.Int64{}
	client := &fake.Clientset{}
	client.AddReactor("create", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		asked.Add(1)
		switch review := action.(clienttesting.CreateAction).GetObject().DeepCopyObject().(type) {
		case *authenticationv1.TokenReview:
			review.Status.Authenticated = review.Spec.Token == "good"
			review.Status.User = authenticationv1.UserInfo{Username: "reader", Groups: []string{user.AllAuthenticated}}
			return true, review, nil
		case *authorizationv1.SubjectAccessReview:
			review.Status.Allowed = review.Spec.User == "reader"
			return true, review, nil
		}
		return false, nil, nil
	})
	return New(client), asked
}

func TestMadeUpTokensDoNotDisplaceThoseThatAreKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, asked := cluster()
		if who, err := g.Who(t.Context(), "scraper", "good"); err != nil || who.GetName() != "reader" {
			t.Fatal(who, err)
		}
		for i := range 2 * Remembered {
			if who, err := g.Who(t.Context(), fmt.Sprint("stranger ", i), fmt.Sprint("made up ", i)); who != nil || err != nil {
				t.Fatal(who, err)
			}
		}
		before := asked.Load()
		if who, err := g.Who(t.Context(), "scraper", "good"); err != nil || who.GetName() != "reader" || asked.Load() != before {
			t.Errorf("%v, %v: asked %d times more", who, err, asked.Load()-before)
		}
		if kept := len(g.users.refused.Keys()); kept != Remembered {
			t.Errorf("%d refusals are remembered, want %d", kept, Remembered)
		}
	})
}

func TestASourceThatAsksTooMuchIsRefusedAndOthersAreNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, asked := cluster()
		busy := 0
		for i := range 1000 {
			if _, err := g.Who(t.Context(), "stranger", fmt.Sprint("made up ", i)); errors.Is(err, ErrBusy) {
				busy++
			}
		}
		if asked.Load() != burst || busy != 1000-burst {
			t.Errorf("the API server was asked %d times, and %d were refused", asked.Load(), busy)
		}
		if who, err := g.Who(t.Context(), "scraper", "good"); err != nil || who == nil {
			t.Errorf("another: %v, %v", who, err)
		}
		time.Sleep(time.Second)
		if _, err := g.Who(t.Context(), "stranger", "good"); err != nil {
			t.Errorf("a second later: %v", err)
		}
	})
}

// An API server that takes long is asked by one source twice at a time, and by all a few times.
func TestQuestionsUnderWayAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		var one, all atomic.Int64
		k := newAnswers(func(bool) bool { return false })
		ask := func(source string, i int, count *atomic.Int64) {
			_, _ = k.ask(t.Context(), source, sha256.Sum256(fmt.Appendf(nil, "%s %d", source, i)), func(context.Context) (bool, error) {
				count.Add(1)
				<-answer
				return false, nil
			})
		}
		for i := range burst {
			go ask("stranger", i, &one)
		}
		synctest.Wait()
		if one.Load() != askingEach {
			t.Errorf("%d questions of one source at once", one.Load())
		}
		go ask("scraper", 0, &all)
		synctest.Wait()
		if all.Load() != 1 {
			t.Error("another source waits for the first")
		}
		for i := range 100 {
			go ask(fmt.Sprint(i), 0, &all)
		}
		synctest.Wait()
		if sum := one.Load() + all.Load(); sum != asking {
			t.Errorf("%d questions at once", sum)
		}
		// Who waits too long is told so, and is not let in.
		time.Sleep(AskTimeout + time.Second)
		close(answer)
		synctest.Wait()
		if sum := one.Load() + all.Load(); sum != asking {
			t.Errorf("asked %d times in all: who waited for 10 s was not let go", sum)
		}
	})
}

func TestUsersAreBlamedByNameAndStrangersBySource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := cluster()
		may := func(u *user.DefaultInfo, path string) (bool, error) {
			return g.May(t.Context(), "10.0.0.1", u, authorizationv1.SubjectAccessReviewSpec{
				NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: "get"},
			})
		}
		anonymous := &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}
		var err error
		for i := range burst + 1 {
			_, err = may(anonymous, fmt.Sprint("/made-up/", i))
		}
		if !errors.Is(err, ErrBusy) {
			t.Errorf("made-up paths: %v", err)
		}
		if allowed, err := may(&user.DefaultInfo{Name: "reader", Groups: []string{user.AllAuthenticated}}, "/metrics"); !allowed || err != nil {
			t.Errorf("the reader behind the same address: %v, %v", allowed, err)
		}
	})
}

func TestSources(t *testing.T) {
	for remote, want := range map[string]string{
		"10.1.2.3:4":               "10.1.2.3",
		"[::ffff:10.1.2.3]:4":      "10.1.2.3",
		"[2001:db8:1:2:3:4:5:6]:7": "2001:db8:1:2::/64",
		"[2001:db8:1:2:ffff::1]:7": "2001:db8:1:2::/64",
		"[fe80::1%eth0]:7":         "fe80::/64",
		"pipe":                     "pipe",
	} {
		if got := Source(remote); got != want {
			t.Errorf("%s: %s, want %s", remote, got, want)
		}
	}
}

// from is a connection that says it comes from an address.
type from struct {
	net.Conn
	address string
	closed  bool
}

func (f *from) RemoteAddr() net.Addr { a, _ := net.ResolveTCPAddr("tcp", f.address); return a }
func (f *from) Close() error         { f.closed = true; return nil }

type queue struct {
	net.Listener
	next *from
}

func (q *queue) Accept() (net.Conn, error) { return q.next, nil }

func TestStrangersMakeRoomForOthers(t *testing.T) {
	q := &queue{}
	l := Bound(q, Bounds{Strangers: 4, PerSource: 3, Admitted: 1})
	open := map[string][]*from{}
	arrive := func(address string) *conn {
		q.next = &from{address: address + ":1"}
		open[address] = append(open[address], q.next)
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		return c.(*conn)
	}
	closed := func(address string) (n int) {
		for _, c := range open[address] {
			if c.closed {
				n++
			}
		}
		return n
	}
	scraper := arrive("10.0.0.9")
	for range 10 {
		arrive("10.0.0.1")
	}
	if closed("10.0.0.1") != 7 || closed("10.0.0.9") != 0 {
		t.Errorf("%d of the ten of one source are closed, and %d of the other", closed("10.0.0.1"), closed("10.0.0.9"))
	}
	// All places are taken: whoever has most of them gives one up.
	arrive("10.0.0.2")
	arrive("10.0.0.3")
	if closed("10.0.0.1") != 9 || closed("10.0.0.9") != 0 || closed("10.0.0.2") != 0 {
		t.Errorf("%d of the first are closed", closed("10.0.0.1"))
	}
	if !scraper.admit() || l.waiting != 3 {
		t.Errorf("not let in; %d strangers", l.waiting)
	}
	second := arrive("10.0.0.4")
	if second.admit() {
		t.Error("two are let in where there is room for one")
	}
	_ = scraper.Close()
	_ = scraper.Close()
	if !second.admit() || l.admitted != 1 {
		t.Errorf("no room after the first has left; %d are in", l.admitted)
	}
	for _, of := range open {
		for _, c := range of {
			c.closed = true
		}
	}
}
