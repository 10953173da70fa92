// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

func parse(set *Set, profiles string) (*config.Config, error) {
	file := "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n" + profiles
	return config.Parse("config.yaml", []byte(file), config.Options{Probe: set.Probe})
}

func newSet(t *testing.T, factories map[string]Factory) *Set {
	set := New(t.Context(), Options{Factories: factories, Client: fake.NewClientset()})
	t.Cleanup(set.Close)
	return set
}

// TestFactoriesGetTheArgumentsOfTheFile verifies that factories get undecoded JSON or nothing, like
// upstream's, and create one plugin per profile.
func TestFactoriesGetTheArgumentsOfTheFile(t *testing.T) {
	var made []string
	set := newSet(t, map[string]Factory{"A": func(_ context.Context, args runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
		text := "nothing"
		if args != nil {
			text = string(args.(*runtime.Unknown).Raw) + " " + args.(*runtime.Unknown).ContentType
		}
		made = append(made, h.ProfileName()+": "+text)
		return &fakePlugin{name: "A"}, nil
	}, "unused": func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
		t.Error("a plugin that no profile enables is made")
		return nil, nil
	}})
	c, err := parse(set, `
profiles:
- schedulerName: one
  plugins: {permit: {enabled: [{name: A}]}, score: {enabled: [{name: A, weight: 7}]}}
  pluginConfig: [{name: A, args: {rack: r1, size: 3}}]
- schedulerName: two
  plugins: {multiPoint: {enabled: [{name: A}]}}
- schedulerName: three
`)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(made, "; "); got != `one: {"rack":"r1","size":3} application/json; two: nothing` {
		t.Errorf("got %s", got)
	}
	profiles, err := set.Profiles(c)
	if err != nil {
		t.Fatal(err)
	}
	one, two, three := profiles[0], profiles[1], profiles[2]
	if !one.Has(plugins.Permit, "A") || one.Has(plugins.Reserve, "A") || one.Weights["A"] != 7 {
		t.Errorf("profile one has A at other points than those that the file names: %v", one.At)
	}
	for _, point := range plugins.AllPoints {
		if two.Has(point, "A") != (allPoints&point != 0) {
			t.Errorf("multiPoint: A at %s: %t", point, two.Has(point, "A"))
		}
	}
	if len(three.Extensions) != 0 || len(three.Filters) != len(plugins.Default().Filters) {
		t.Error("a profile without plugins from outside is not what it is without")
	}
}

// TestConfigurationsThatAreRefused verifies that errors consist of the path and upstream's message.
func TestConfigurationsThatAreRefused(t *testing.T) {
	factories := map[string]Factory{
		"A": func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
			return &fakePlugin{name: "A"}, nil
		},
		"broken": func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
			return nil, errors.New("no licence")
		},
		"panics": func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { panic("no rack") },
		"empty":  func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return nil, nil },
	}
	for _, c := range []struct{ plugins, want string }{
		{"{filter: {enabled: [{name: B}]}}", `profiles[0].plugins.filter.enabled[0].name: FilterPlugin "B" does not exist`},
		{"{multiPoint: {enabled: [{name: B}]}}", `profiles[0].plugins.multiPoint.enabled[0].name: plugin "B" does not exist`},
		{"{bind: {enabled: [{name: A}]}}", `profiles[0].plugins.bind.enabled[0].name: plugin "A" does not extend BindPlugin plugin`},
		{"{filter: {enabled: [{name: A}, {name: A}]}}", `plugin "A" already registered as "FilterPlugin"`},
		{"{filter: {enabled: [{name: broken}]}}", `profiles[0]: initializing plugin "broken": no licence`},
		{"{filter: {enabled: [{name: empty}]}}", `profiles[0]: initializing plugin "empty": the factory returned no plugin`},
		{"{filter: {enabled: [{name: panics}]}}", `profiles[0]: initializing plugin "panics": it panicked: no rack`},
	} {
		_, err := parse(newSet(t, factories), "profiles: [{schedulerName: x, plugins: "+c.plugins+"}]")
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s:\n got %v\nwant %s", c.plugins, err, c.want)
		}
	}
}

// TestPluginsKeepTheirPlaceAmongBerthsOwn verifies that filters run in the order of the file, and
// the first one rejecting a node gives the reason.
func TestPluginsKeepTheirPlaceAmongBerthsOwn(t *testing.T) {
	for order, want := range map[string]string{
		"[{name: A}, {name: NodeResourcesFit}]": "1 says A", "[{name: NodeResourcesFit}, {name: A}]": "1 Insufficient cpu",
	} {
		f := newConfigured(t, "plugins: {multiPoint: {enabled: [{name: A}]}, filter: {enabled: "+order+"}}", &fakePlugin{name: "A", quiet: true,
			filter: func(fwk.CycleState, *v1.Pod, fwk.NodeInfo) *fwk.Status {
				return fwk.NewStatus(fwk.Unschedulable, "says A")
			}})
		f.node("small", 1)
		_, got := f.decide(pod("p", "2"))
		f.expect(order, got, "0/1 nodes are available: "+want+".")
	}
}

// TestPluginsLiveUntilTheLastPodThatTheyWereAskedAboutIsDone verifies that closing the set ends the
// plugins' context only after the last attempt has ended.
func TestPluginsLiveUntilTheLastPodThatTheyWereAskedAboutIsDone(t *testing.T) {
	var life context.Context
	f := &fixture{T: t, store: NewStore(), record: &record{}}
	f.cluster = newFixture(t).cluster
	f.configure("plugins: {permit: {enabled: [{name: A}]}}", map[string]Factory{"A": func(ctx context.Context, _ runtime.Object, _ fwk.Handle) (fwk.Plugin, error) {
		life = ctx
		return &fakePlugin{name: "A", record: f.record}, nil
	}})
	f.node("n1", 4)
	a, _ := f.decide(pod("p", "1"))
	f.set.Close()
	if life.Err() != nil {
		t.Error("the plugin's context has ended while a pod is on its way")
	}
	f.end(a)
	if life.Err() == nil {
		t.Error("the plugin's context has not ended")
	}
}

func (f *fixture) end(a *cycle.Attempt) {
	for _, e := range f.profile.Extensions {
		if ender, ok := e.(cycle.Ender); ok {
			ender.End(a, true)
		}
	}
}

// TestInformersAreMadeOnlyWhenAskedFor verifies that only requested informers are created, and that
// they are synced when scheduling begins.
func TestInformersAreMadeOnlyWhenAskedFor(t *testing.T) {
	var asked fwk.Handle
	client := fake.NewClientset(pod("p", "1"))
	set := New(t.Context(), Options{Client: client, Factories: map[string]Factory{"A": func(_ context.Context, _ runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
		asked = h
		h.SharedInformerFactory().Core().V1().Pods().Lister()
		return &fakePlugin{name: "A"}, nil
	}}})
	defer set.Close()
	c, err := parse(set, "profiles: [{schedulerName: x, plugins: {permit: {enabled: [{name: A}]}}}]")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := set.Profiles(c); err != nil {
		t.Fatal(err)
	}
	if err := set.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p, err := asked.SharedInformerFactory().Core().V1().Pods().Lister().Pods("default").Get("p"); err != nil || p.Name != "p" {
		t.Errorf("got %v, %v", p, err)
	}
	for _, action := range client.Actions() {
		if of := action.GetResource().Resource; of != "pods" && of != "nodes" { // nodes are listed for NodeInfo
			t.Errorf("%s of %s, which no plugin asked for", action.GetVerb(), of)
		}
	}
}

// TestSetEndsThoughAnEventHandlerDoesNotReturn verifies that closing a set takes at most
// closeWithin, and does not delay the deciding goroutine.
func TestSetEndsThoughAnEventHandlerDoesNotReturn(t *testing.T) {
	t.Run("with a pod under way", func(t *testing.T) { endsThoughAHandlerDoesNotReturn(t, true) })
	t.Run("without", func(t *testing.T) { endsThoughAHandlerDoesNotReturn(t, false) })
}

func endsThoughAHandlerDoesNotReturn(t *testing.T, under bool) {
	synctest.Test(t, func(t *testing.T) {
		returns := make(chan struct{})
		set := New(context.Background(), Options{Client: fake.NewClientset(pod("p", "1")), Factories: map[string]Factory{
			"A": func(_ context.Context, _ runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
				_, err := h.SharedInformerFactory().Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(any) { <-returns }})
				return &fakePlugin{name: "A"}, err
			},
		}})
		c, err := parse(set, "profiles: [{schedulerName: x, plugins: {permit: {enabled: [{name: A}]}}}]")
		if err != nil {
			t.Fatal(err)
		}
		profiles, err := set.Profiles(c)
		if err != nil {
			t.Fatal(err)
		}
		if err := set.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		extensions := profiles[0].Extensions
		if under { // an attempt is unfinished, and ends on the deciding goroutine
			a := &cycle.Attempt{Pod: pod("p", "1")}
			extensions[0].(cycle.Beginner).Begin(a)
			set.Close()
			if set.ctx.Err() != nil {
				t.Error("the plugin's context has ended before its last pod")
			}
			began := time.Now()
			extensions[0].(cycle.Ender).End(a, true)
			if took := time.Since(began); took != 0 {
				t.Errorf("decisions wait for %v", took)
			}
		} else {
			began := time.Now()
			set.Close()
			if took := time.Since(began); took != closeWithin {
				t.Errorf("it took %v to end, want %v", took, closeWithin)
			}
		}
		if set.ctx.Err() == nil {
			t.Error("the plugin's context has not ended")
		}
		time.Sleep(time.Minute)
		close(returns)
	})
}

// TestObjectsThatWereShownBeforeTheyWereNeededAreListed verifies that Need lists objects shown
// before, for example when a configuration adds the first plugin, and that objects shown meanwhile
// take precedence over the list.
func TestObjectsThatWereShownBeforeTheyWereNeededAreListed(t *testing.T) {
	client := fake.NewClientset(pod("p", "1", on("n1")), pod("q", "1", on("n1")))
	store := NewStore()
	store.Pod(pod("p", "1"))
	if err := store.Need(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	if len(store.pods) != 2 {
		t.Errorf("got %v", store.pods)
	}
	newer := pod("q", "2", on("n1"))
	store.Pod(newer)
	store.addMissed(nil, []v1.Pod{*pod("q", "1")})
	if store.pods["q"].info.pod != newer {
		t.Error("the list takes the place of what is newer")
	}
	store.Spare()
	if len(store.pods)+len(store.nodes) != 0 {
		t.Errorf("kept though nobody needs it: %v, %v", store.pods, store.nodes)
	}
	if err := store.Need(t.Context(), client); err != nil || len(store.pods) != 2 {
		t.Errorf("needed again, there are %v, %v", store.pods, err)
	}
	fresh := NewStore()
	if err := fresh.Need(t.Context(), client); err != nil || len(fresh.pods) != 0 {
		t.Errorf("a store that has missed nothing lists: %v, %v", fresh.pods, err)
	}
}

// TestWhatGoesWhileItIsListedIsNotKept verifies that objects deleted during a list are not kept,
// because nothing would ever remove them.
func TestWhatGoesWhileItIsListedIsNotKept(t *testing.T) {
	store := NewStore()
	client := fake.NewClientset(pod("p", "1", on("n1")), pod("q", "1", on("n1")), pod("r", "1", on("n1")))
	client.PrependReactor("list", "pods", func(ktesting.Action) (bool, runtime.Object, error) {
		store.PodGone("p")
		ended := pod("q", "1", on("n1"))
		ended.Status.Phase = v1.PodSucceeded
		store.Pod(ended)
		store.NodeGone("n1")
		return false, nil, nil
	})
	client.PrependReactor("list", "nodes", func(ktesting.Action) (bool, runtime.Object, error) {
		return true, &v1.NodeList{Items: []v1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, {ObjectMeta: metav1.ObjectMeta{Name: "n2"}}}}, nil
	})
	store.Pod(pod("p", "1", on("n1")))
	if err := store.Need(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	if store.Shown("p") != nil || store.Shown("q") != nil || store.Shown("r") == nil {
		t.Errorf("got %v, want r alone", store.pods)
	}
	if len(store.nodes) != 1 || store.nodes["n2"] == nil {
		t.Errorf("got %v, want n2 alone", store.nodes)
	}
}

// TestObjectsThatCouldNotBeListedAreListedTheNextTime verifies that a failed list is repeated when
// another configuration needs the objects.
func TestObjectsThatCouldNotBeListedAreListedTheNextTime(t *testing.T) {
	store, fails := NewStore(), true
	client := fake.NewClientset(pod("p", "1"))
	client.PrependReactor("list", "pods", func(ktesting.Action) (bool, runtime.Object, error) {
		return fails, nil, errors.New("timed out")
	})
	store.Pod(pod("p", "1"))
	if err := store.Need(t.Context(), client); err == nil {
		t.Fatal("objects are missing, and that is no error")
	}
	if store.Pod(pod("q", "1")); store.Shown("q") != nil {
		t.Error("objects are kept for a configuration that was refused")
	}
	fails = false
	if err := store.Need(t.Context(), client); err != nil || store.Shown("p") == nil {
		t.Errorf("p is missing: %v", err)
	}
}
