// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2eeviction

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/test/internal/nightly"
)

// scene is a cluster and a controller, with the network between them.
type scene struct {
	*stage
	network *proxy
}

// situation is an error-prone case. The function play returns the failure, or "". The names of
// nodes and pods begin with id, so that the situations of a group can run concurrently.
type situation struct {
	name string
	play func(s *scene, id string) (wrong string)
}

// situations lists all situations by the fault of the network.
var situations = []struct {
	network string
	list    []situation
	nightly bool
}{
	{"single requests fail", slices.Concat(failures, recomputed, byTolerations), false},
	{"the watch of nodes is late", lateNodes, true},
	{"watches break", brokenWatches, true},
	{"the API is away", outages, false},
}

// TestSituations verifies that Berth handles every situation. The following command also plays the
// situations against upstream's controller, and prints a table of failures:
//
//	go test ./e2e_eviction -run 'TestSituations$' -beside -v
func TestSituations(t *testing.T) {
	t.Parallel()
	sides := []side{berthSide}
	if *beside {
		sides = append(sides, upstreamSide)
	}
	wrong := map[string]string{} // failures by side and situation
	var mu sync.Mutex
	t.Run("play", func(t *testing.T) {
		for _, s := range sides {
			for _, group := range situations {
				t.Run(s.name+"/"+group.network, func(t *testing.T) {
					t.Parallel()
					if group.nightly {
						nightly.Only(t)
					}
					playAll(t, s, group.list, func(name, what string) {
						t.Logf("%s: %s", name, cmp.Or(what, "right"))
						mu.Lock()
						defer mu.Unlock()
						wrong[s.name+name] = what
					})
				})
			}
		}
	})
	for _, group := range situations {
		for _, one := range group.list {
			if what := wrong[berthSide.name+one.name]; what != "" {
				t.Errorf("%s: %s", one.name, what)
			}
			if *beside {
				t.Logf("%-75s upstream: %s", one.name, cmp.Or(wrong[upstreamSide.name+one.name], "right"))
			}
		}
	}
}

func playAll(t *testing.T, s side, list []situation, report func(name, wrong string)) {
	c := newCluster(t)
	network, kubeconfig := newProxy(t, c.config)
	stage := newStage(t, c)
	s.start(t, stage, kubeconfig)
	var playing sync.WaitGroup
	for i, one := range list {
		playing.Go(func() { report(one.name, one.play(&scene{stage, network}, fmt.Sprintf("s%d", i))) })
	}
	playing.Wait()
}

// taint sets a node's taints to exactly these keys, and returns the time of the request.
func (s *stage) taint(node string, keys ...string) time.Time {
	s.Helper()
	began := time.Now()
	_, err := s.client.CoreV1().Nodes().Patch(s.Context(), node, mergePatch, taintPatch(keys...), kubectlTaint)
	if err != nil {
		s.Errorf("taint %s: %v", node, err)
	}
	s.timed(began)
	return began
}

// on creates a node, and a pod with the same name on it.
func (s *stage) on(name string, tolerations ...v1.Toleration) *v1.Pod {
	s.Helper()
	if err := s.createNode(name, "z"); err != nil {
		s.Errorf("node %s: %v", name, err)
	}
	return s.again(name, name, tolerations...)
}

// again creates a pod as soon as no other pod has the name. After ten seconds it deletes the other
// pod.
func (s *stage) again(name, node string, tolerations ...v1.Toleration) *v1.Pod {
	s.Helper()
	for began := time.Now(); ; {
		pod, err := s.createPod(name, node, tolerations...)
		if !apierrors.IsAlreadyExists(err) {
			if err != nil {
				s.Errorf("pod %s: %v", name, err)
			}
			return pod
		}
		if time.Since(began) > 10*time.Second {
			s.remove(name)
			began = time.Now()
		}
		<-time.After(2 * time.Millisecond)
	}
}

// goesAt describes the failure unless the pod leaves at the given time: at most 1.2 s earlier, and
// not later than punctual permits.
func (s *stage) goesAt(pod *v1.Pod, at time.Time) string {
	if !s.leavesBy(pod.UID, at.Add(6*time.Second+s.punctual())) {
		return "the pod never goes"
	}
	left, _ := s.when(pod.UID)
	switch after := left.Sub(at); {
	case after < -1200*time.Millisecond:
		return fmt.Sprintf("the pod goes %.1f s early", -after.Seconds())
	case after > s.punctual():
		return fmt.Sprintf("the pod goes %.1f s late", after.Seconds())
	}
	return ""
}

// goesBy describes the failure unless the pod leaves before the given time, or not later than
// punctual permits.
func (s *stage) goesBy(pod *v1.Pod, end time.Time) string {
	end = end.Add(s.punctual())
	if s.leavesBy(pod.UID, end) {
		return ""
	}
	if s.leavesBy(pod.UID, end.Add(6*time.Second)) {
		left, _ := s.when(pod.UID)
		return fmt.Sprintf("the pod goes %.1f s late", left.Sub(end).Seconds())
	}
	return "the pod never goes"
}

// staysUntil describes the failure if the pod leaves before the given time.
func (s *stage) staysUntil(pod *v1.Pod, end time.Time) string {
	if s.leavesBy(pod.UID, end) {
		return "the pod goes and must not"
	}
	return ""
}

func (s *stage) remove(pod string) {
	s.Helper()
	if err := s.client.CoreV1().Pods("default").Delete(s.Context(), pod, *metav1.NewDeleteOptions(0)); err != nil {
		s.Errorf("delete %s: %v", pod, err)
	}
}

// tolerate sets the seconds of all of a pod's tolerations of the taint a.
func (s *stage) tolerate(pod string, seconds int64) {
	s.Helper()
	p, err := s.client.CoreV1().Pods("default").Get(s.Context(), pod, metav1.GetOptions{})
	if err == nil {
		for i := range p.Spec.Tolerations {
			if p.Spec.Tolerations[i].Key == "a" {
				p.Spec.Tolerations[i].TolerationSeconds = &seconds
			}
		}
		_, err = s.client.CoreV1().Pods("default").Update(s.Context(), p, metav1.UpdateOptions{})
	}
	if err != nil {
		s.Errorf("tolerations of %s: %v", pod, err)
	}
}
