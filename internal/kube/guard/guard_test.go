// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/util/flowcontrol"
)

// cluster is an API server that accepts the token "good" and allows "reader" everything.
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

// TestQuestionsUnderWayAreFew verifies that the number of reviews in flight is bounded per source
// and in total, and that callers do not wait longer than AskTimeout.
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
		// Callers that wait longer than AskTimeout must give up without a review.
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

// TestAnswersAreThoseOfTheAPIServer verifies that a user without a name, or with an error, is
// refused, and that the refusal is cached. It also verifies that a denied access is not allowed,
// and that reviews contain all fields of the user.
func TestAnswersAreThoseOfTheAPIServer(t *testing.T) {
	reader := authenticationv1.UserInfo{Username: "reader", UID: "1", Groups: []string{"g"}, Extra: map[string]authenticationv1.ExtraValue{"k": {"v"}}}
	for name, c := range map[string]struct {
		token  authenticationv1.TokenReviewStatus
		known  bool
		access authorizationv1.SubjectAccessReviewStatus
		may    bool
	}{
		"known and allowed":   {token: authenticationv1.TokenReviewStatus{Authenticated: true, User: reader}, known: true, access: authorizationv1.SubjectAccessReviewStatus{Allowed: true}, may: true},
		"not authenticated":   {token: authenticationv1.TokenReviewStatus{User: reader}},
		"without a name":      {token: authenticationv1.TokenReviewStatus{Authenticated: true}},
		"beside an error":     {token: authenticationv1.TokenReviewStatus{Authenticated: true, User: reader, Error: "the webhook is away"}},
		"an error alone":      {token: authenticationv1.TokenReviewStatus{Error: "invalid bearer token"}},
		"not allowed":         {token: authenticationv1.TokenReviewStatus{Authenticated: true, User: reader}, known: true},
		"allowed, and denied": {token: authenticationv1.TokenReviewStatus{Authenticated: true, User: reader}, known: true, access: authorizationv1.SubjectAccessReviewStatus{Allowed: true, Denied: true}},
	} {
		client := &fake.Clientset{}
		reviews := 0
		var asked authorizationv1.SubjectAccessReviewSpec
		client.AddReactor("create", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
			switch review := action.(clienttesting.CreateAction).GetObject().DeepCopyObject().(type) {
			case *authenticationv1.TokenReview:
				reviews++
				review.Status = c.token
				return true, review, nil
			case *authorizationv1.SubjectAccessReview:
				asked, review.Status = review.Spec, c.access
				return true, review, nil
			}
			return false, nil, nil
		})
		g := New(client)
		who, err := g.Who(t.Context(), "10.0.0.1", "token")
		if (who != nil) != c.known || err != nil {
			t.Errorf("%s: %v, %v", name, who, err)
		}
		if _, _ = g.Who(t.Context(), "10.0.0.1", "token"); reviews != 1 {
			t.Errorf("%s: the token was reviewed %d times", name, reviews)
		}
		if who == nil {
			continue
		}
		may, err := g.May(t.Context(), "10.0.0.1", who, authorizationv1.SubjectAccessReviewSpec{})
		if err != nil || may != c.may {
			t.Errorf("%s: %t, %v", name, may, err)
		}
		if asked.User != "reader" || asked.UID != "1" || !slices.Equal(asked.Groups, []string{"g"}) || asked.Extra["k"].String() != "[v]" {
			t.Errorf("%s: asked about %+v", name, asked)
		}
	}
}

// TestAnswersHoldForAWhile verifies that grants and refusals are cached for Remember, separately
// per user, and that errors are not cached.
func TestAnswersHoldForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, fails := 0, false
		k := newAnswers(func(yes bool) bool { return yes })
		ask := func(question string, answer bool) (bool, error) {
			return k.ask(t.Context(), "10.0.0.1", sha256.Sum256([]byte(question)), func(ctx context.Context) (bool, error) {
				asked++
				if _, bounded := ctx.Deadline(); !bounded {
					t.Error("a question without a deadline")
				}
				if fails {
					return false, errors.New("no answer")
				}
				return answer, nil
			})
		}
		for _, answer := range []bool{true, false} {
			asked = 0
			question := fmt.Sprint("is it ", answer)
			for _, step := range []struct {
				after time.Duration
				asked int
			}{{0, 1}, {Remember - time.Second, 1}, {2 * time.Second, 2}} {
				time.Sleep(step.after)
				if got, err := ask(question, answer); got != answer || err != nil || asked != step.asked {
					t.Errorf("%s: %t, %v, asked %d times, want %d", question, got, err, asked, step.asked)
				}
			}
		}
		fails = true
		if _, err := ask("other", true); err == nil {
			t.Error("an error is an answer")
		}
		fails = false
		if got, err := ask("other", true); !got || err != nil {
			t.Errorf("after an error: %t, %v", got, err)
		}
		g, _ := cluster()
		spec := authorizationv1.SubjectAccessReviewSpec{NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: "/metrics", Verb: "get"}}
		for name, want := range map[string]bool{"reader": true, "writer": false} {
			if may, err := g.May(t.Context(), "10.0.0.1", &user.DefaultInfo{Name: name}, spec); may != want || err != nil {
				t.Errorf("%s: %t, %v", name, may, err)
			}
		}
	})
}

// TestAnswersInUseAreRenewed verifies that a cached answer in use is renewed before it expires,
// once at a time and without a wait, that a failed renewal is repeated, and that a renewal can
// refuse.
func TestAnswersInUseAreRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newAnswers(func(yes bool) bool { return yes })
		var asked atomic.Int32
		var allowed, fails atomic.Bool
		answer := make(chan struct{})
		ask := func() bool {
			said, err := k.ask(t.Context(), "10.0.0.1", sha256.Sum256(nil), func(context.Context) (bool, error) {
				if asked.Add(1) > 1 {
					<-answer
				}
				if fails.Load() {
					return false, errors.New("no answer")
				}
				return allowed.Load(), nil
			})
			return said && err == nil
		}
		allowed.Store(true)
		ask()
		time.Sleep(renewAfter + time.Second)
		began := time.Now()
		for range 100 {
			if !ask() {
				t.Fatal("a cached answer does not hold during its renewal")
			}
		}
		synctest.Wait()
		if n := asked.Load(); n != 2 || time.Since(began) > 0 {
			t.Errorf("asked %d times, and callers waited %v", n, time.Since(began))
		}
		fails.Store(true)
		answer <- struct{}{}
		synctest.Wait()
		ask() // after a failed renewal
		synctest.Wait()
		fails.Store(false)
		close(answer)
		synctest.Wait()
		time.Sleep(Remember - 4*time.Second) // the first answer has expired, and the renewed one is fresh
		if n := asked.Load(); !ask() || n != 3 || asked.Load() != 3 {
			t.Errorf("asked %d times, want 3", asked.Load())
		}
		allowed.Store(false)
		time.Sleep(2 * time.Second)
		ask()
		if synctest.Wait(); ask() {
			t.Error("a renewal that refuses has no effect")
		}
	})
}

// TestTheSameQuestionIsAskedOnce verifies that a review is not repeated for callers that waited for
// their turn during it, and that all slots are released, even by callers that gave up waiting.
func TestTheSameQuestionIsAskedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newAnswers(func(yes bool) bool { return yes })
		var asked atomic.Int32
		answer := make(chan struct{})
		ask := func(source, question string) {
			_, _ = k.ask(t.Context(), source, sha256.Sum256([]byte(question)), func(context.Context) (bool, error) {
				asked.Add(1)
				<-answer
				return true, nil
			})
		}
		for range 10 {
			go ask("stranger", "the same")
		}
		synctest.Wait()
		close(answer)
		synctest.Wait()
		if n := asked.Load(); n > askingEach {
			t.Errorf("asked %d times", n)
		}
		answer = make(chan struct{})
		for i := range asking {
			go ask(fmt.Sprint(i), fmt.Sprint(i))
		}
		synctest.Wait()
		for range askingEach {
			go ask("stranger", "whether there is a place") // all slots are in use
		}
		time.Sleep(AskTimeout + time.Second)
		close(answer)
		synctest.Wait()
		asked.Store(0)
		answer = make(chan struct{})
		for i := range askingEach {
			go ask("stranger", fmt.Sprint("later ", i))
		}
		synctest.Wait()
		if n := asked.Load(); n != askingEach {
			t.Errorf("%d questions of a source whose earlier ones are over, want %d", n, askingEach)
		}
		close(answer)
	})
}

// TestAQuestionEndsWithItsRequest verifies that a review ends when the context of its request ends.
func TestAQuestionEndsWithItsRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := rest.Config{Host: "http://api", Transport: silent{}}
		client, err := Client(&api)
		if err != nil {
			t.Fatal(err)
		}
		g := New(client)
		for name, ask := range map[string]func(context.Context) error{
			"who": func(ctx context.Context) error { _, err := g.Who(ctx, "10.0.0.1", "token"); return err },
			"may": func(ctx context.Context) error {
				_, err := g.May(ctx, "10.0.0.1", &user.DefaultInfo{Name: "reader"}, authorizationv1.SubjectAccessReviewSpec{})
				return err
			},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			began := time.Now()
			if err := ask(ctx); err == nil || time.Since(began) != time.Second {
				t.Errorf("%s: %v after %v", name, err, time.Since(began))
			}
			cancel()
		}
	})
}

// silent is an API server that does not respond.
type silent struct{}

func (silent) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// TestTheClientIsForReviewsAlone verifies that the guard's client has a separate rate limit and
// deadline.
func TestTheClientIsForReviewsAlone(t *testing.T) {
	config := &rest.Config{Host: "http://127.0.0.1:1", QPS: 1, Burst: 1, RateLimiter: flowcontrol.NewFakeNeverRateLimiter()}
	other, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	client, err := Client(config)
	if err != nil {
		t.Fatal(err)
	}
	own, others := client.AuthenticationV1().RESTClient().(*rest.RESTClient), other.AuthenticationV1().RESTClient().(*rest.RESTClient)
	if own.GetRateLimiter() == others.GetRateLimiter() || own.GetRateLimiter().QPS() != 50 {
		t.Error("the rate limit is shared")
	}
	if own.Client.Timeout != AskTimeout || config.Timeout != 0 || config.QPS != 1 {
		t.Errorf("a request may take %v; the configuration is %+v now", own.Client.Timeout, config)
	}
}

// TestTheClientHasConnectionsOfItsOwn verifies that the guard's client shares no connections with
// other clients of the same configuration.
func TestTheClientHasConnectionsOfItsOwn(t *testing.T) {
	var opened atomic.Int64
	api := httptest.NewUnstartedServer(http.NotFoundHandler())
	api.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	api.Start()
	defer api.Close()
	config := &rest.Config{Host: api.URL}
	other, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	client, err := Client(config)
	if err != nil {
		t.Fatal(err)
	}
	for _, each := range []kubernetes.Interface{other, client, other, client} {
		if err := each.CoreV1().RESTClient().Get().AbsPath("/").Do(t.Context()).Error(); !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
	if n := opened.Load(); n != 2 {
		t.Errorf("two clients have opened %d connections", n)
	}
}

func TestBearer(t *testing.T) {
	long := strings.Repeat("a", MaxToken)
	for header, want := range map[string]string{
		"Bearer a": "a", "bearer a": "a", "  BEARER   a ": "a", "Bearer " + long: long,
		"": "", "Bearer": "", "Basic a": "", "a": "", "Bearer " + long + "a": "",
	} {
		r := &http.Request{Header: http.Header{"Authorization": {header}}}
		if got := Bearer(r); got != want {
			t.Errorf("%.40q: %.40q, want %.40q", header, got, want)
		}
	}
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

// from is a connection with a fake remote address.
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
	l := Bound(q, Bounds{Unadmitted: 4, PerSource: 3, Admitted: 1})
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
	// The total bound is reached, so the source with the most connections loses one.
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

// TestWhatLeavesIsForgotten verifies that a source without connections takes no memory, and that a
// closed connection does not count as admitted.
func TestWhatLeavesIsForgotten(t *testing.T) {
	q := &queue{}
	l := Bound(q, Bounds{Unadmitted: 1000, PerSource: 10, Admitted: 10})
	for i := range 100 {
		q.next = &from{address: fmt.Sprintf("10.0.0.%d:1", i)}
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 && !c.(*conn).admit() && i < 20 {
			t.Error("not let in")
		}
		_ = c.Close()
		if !c.(*conn).admit() {
			t.Error("one that was closed is refused")
		}
	}
	if len(l.unadmitted) > 0 || l.waiting != 0 || l.admitted != 0 {
		t.Errorf("%d sources, %d strangers and %d that were let in are remembered", len(l.unadmitted), l.waiting, l.admitted)
	}
}

type endlessly struct{ net.Listener }

func (endlessly) Accept() (net.Conn, error) { return &from{address: "10.0.0.1:1"}, nil }

// TestConnectionsAreFoundInRequests verifies that a request's connection is found, also under TLS.
func TestConnectionsAreFoundInRequests(t *testing.T) {
	for name, wrapped := range map[string]func(net.Conn) net.Conn{
		"plain": func(c net.Conn) net.Conn { return c },
		"TLS":   func(c net.Conn) net.Conn { return tls.Server(c, &tls.Config{}) },
	} {
		l := Bound(endlessly{}, Bounds{Unadmitted: 10, PerSource: 10, Admitted: 1})
		let := 0
		for range 2 {
			c, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			if Admit((&http.Request{}).WithContext(ConnContext(t.Context(), wrapped(c)))) {
				let++
			}
		}
		if let != 1 || l.admitted != 1 {
			t.Errorf("%s: %d are let in, and %d counted, where there is room for one", name, let, l.admitted)
		}
	}
	other, _ := net.Pipe()
	if !Admit((&http.Request{}).WithContext(ConnContext(t.Context(), other))) {
		t.Error("a connection that is not counted is refused")
	}
}
