// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// shownPods is a receiver of Options.Objects that retains the pods.
type shownPods map[types.UID]*v1.Pod

func (s shownPods) Pod(pod *v1.Pod)             { s[pod.UID] = pod }
func (s shownPods) PodGone(uid types.UID)       { delete(s, uid) }
func (s shownPods) Node(*v1.Node)               {}
func (s shownPods) NodeGone(string)             {}
func (s shownPods) Group(*groups.PodGroup)      {}
func (s shownPods) GroupGone(cluster.Name)      {}
func (s shownPods) Shown(uid types.UID) *v1.Pod { return s[uid] }
func withEnv(pod *v1.Pod, value string) *v1.Pod {
	pod.Spec.Containers[0].Env = []v1.EnvVar{{Name: "OWN", Value: value}}
	return pod
}

// onlooker is an out-of-tree plugin that reads fields of pods that Berth does not use.
type onlooker struct{ saw map[string]string }

func (*onlooker) Name() string { return "Onlooker" }
func (o *onlooker) Admit(pod *v1.Pod) *plugins.Rejection {
	o.saw[pod.Name] = pod.Spec.Containers[0].Env[0].Value
	return nil
}

// TestPluginsFromOutsideSeePodsAsTheyAre verifies that out-of-tree plugins get complete pods, even
// if the pods were observed before the plugin was added.
func TestPluginsFromOutsideSeePodsAsTheyAre(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.Put(withEnv(aPod("p1", "1"), "one"), withEnv(aPod("p2", "1"), "two"))
		w.start(Options{Objects: shownPods{}, Profiles: []cycle.Profile{{Profile: plugins.Default()}}}) // without a journal
		w.until("both wait", func() bool { return w.condition("p1") != "" && w.condition("p2") != "" })
		o := &onlooker{map[string]string{}}
		profile := plugins.Default()
		profile.At[plugins.PreEnqueue] = append(profile.At[plugins.PreEnqueue], o.Name())
		if err := w.s.SetProfiles(w.Context(), []cycle.Profile{{Profile: profile, Extensions: []cycle.Extension{o}}}, nil); err != nil {
			t.Fatal(err)
		}
		w.api.Put(withEnv(aPod("p3", "1"), "three"))
		w.until("p3 waits", func() bool { return w.condition("p3") != "" })
		w.do(func() {
			for pod, want := range map[string]string{"p1": "one", "p2": "two", "p3": "three"} {
				if o.saw[pod] != want {
					t.Errorf("of %s the plugin saw %q, want %q", pod, o.saw[pod], want)
				}
			}
		})
	})
}
