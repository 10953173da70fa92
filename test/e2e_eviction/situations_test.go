// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2eeviction

import (
	"fmt"
	"net/http"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
)

// failures lists situations in which requests fail, or succeed although they seem to fail.
var failures = []situation{
	{"five DELETEs fail with 500", deletesFail(fault{status: http.StatusInternalServerError})},
	{"five DELETEs fail with 409", deletesFail(fault{status: http.StatusConflict})},
	{"five DELETEs fail with 403 of a webhook", deletesFail(fault{status: http.StatusForbidden})},
	{"five connections break", deletesFail(fault{unanswered: true})},
	{"five DELETEs time out, undone", deletesFail(fault{status: http.StatusGatewayTimeout, delay: 100 * time.Millisecond})},
	{"a DELETE is done, its answer lost; a new pod has the name, its taint is gone", func(s *scene, id string) string {
		pod := s.on(id)
		s.network.add(fault{method: http.MethodDelete, path: podPath(id), times: 1, unanswered: true, wait: 500 * time.Millisecond})
		s.taint(id, "a")
		s.leavesBy(pod.UID, time.Now().Add(5*time.Second))
		s.taint(id)
		return s.staysUntil(s.again(id, id), time.Now().Add(3*time.Second))
	}},
	{"a DELETE takes 0.5 s to arrive; a new pod has the name, its taint is gone", func(s *scene, id string) string {
		s.on(id)
		s.network.add(fault{method: http.MethodDelete, path: podPath(id), times: 1, delay: time.Second / 2})
		s.taint(id, "a")
		<-time.After(200 * time.Millisecond) // the eviction is in flight
		s.remove(id)
		s.taint(id)
		return s.staysUntil(s.again(id, id), time.Now().Add(3*time.Second))
	}},
	{"marking the pod is refused", func(s *scene, id string) string {
		pod := s.on(id)
		s.network.add(fault{path: podPath(id) + "/status", status: http.StatusForbidden})
		return s.goesAt(pod, s.taint(id, "a"))
	}},
}

func deletesFail(f fault) func(*scene, string) string {
	return func(s *scene, id string) string {
		pod := s.on(id)
		f.method, f.path, f.times = http.MethodDelete, podPath(id), 5
		s.network.add(f)
		tainted := s.taint(id, "a")
		s.leavesBy(pod.UID, tainted.Add(3100*time.Millisecond))                // the sum of five back-offs
		return s.goesBy(pod, time.Now().Add(5*3*time.Duration(s.slow.Load()))) // plus three requests per attempt
	}
}

// recomputed lists situations in which taints or tolerations change during tolerationSeconds.
var recomputed = []situation{
	{"taint a (8 s) replaced by b (1 s)", func(s *scene, id string) string {
		pod := s.on(id, tolerates("a", 8), tolerates("b", 1))
		s.taint(id, "a")
		<-time.After(time.Second)
		return s.goesAt(pod, s.taint(id, "b").Add(time.Second))
	}},
	{"taint a (3 s) replaced by b (60 s)", func(s *scene, id string) string {
		pod := s.on(id, tolerates("a", 3), tolerates("b", 60))
		s.taint(id, "a")
		<-time.After(time.Second)
		return s.staysUntil(pod, s.taint(id, "b").Add(5*time.Second))
	}},
	{"taint b (3 s) put on just when a (3 s) is taken off", func(s *scene, id string) string {
		pod := s.on(id, tolerates("a", 3), tolerates("b", 3))
		s.taint(id, "a")
		<-time.After(1800 * time.Millisecond)
		return s.goesAt(pod, s.taint(id, "b").Add(3*time.Second))
	}},
	{"a toleration edited from 15 s to 1 s", func(s *scene, id string) string {
		pod := s.on(id, tolerates("a", 15))
		tainted := s.taint(id, "a")
		<-time.After(2500 * time.Millisecond)
		s.tolerate(id, 1)
		return s.goesAt(pod, tainted.Add(2500*time.Millisecond))
	}},
	{"a toleration edited from 3 s to 60 s", func(s *scene, id string) string {
		pod := s.on(id, tolerates("a", 3))
		tainted := s.taint(id, "a")
		<-time.After(time.Second)
		s.tolerate(id, 60)
		return s.staysUntil(pod, tainted.Add(6*time.Second))
	}},
	{"a pod comes back under its name in mid-countdown: it has its own", func(s *scene, id string) string {
		s.on(id, tolerates("a", 4))
		s.taint(id, "a")
		<-time.After(2500 * time.Millisecond)
		s.remove(id)
		pod := s.again(id, id, tolerates("a", 4))
		return s.goesAt(pod, time.Now().Add(4*time.Second))
	}},
}

// byTolerations lists situations in which the controller must find the effective tolerationSeconds.
var byTolerations = []situation{
	{"the first matching toleration counts: 1 s, then 60 s", tolerating(time.Second, tolerates("a", 1), tolerates("a", 60))},
	{"the first matching toleration counts: 60 s, then 1 s", tolerating(-1, tolerates("a", 60), tolerates("a", 1))},
	{"no seconds: forever", tolerating(-1, tolerates("a"))},
	{"zero seconds: at once", tolerating(0, tolerates("a", 0))},
	{"negative seconds: at once", tolerating(0, tolerates("a", -5))},
	{"more seconds than a duration holds: forever", tolerating(-1, tolerates("a", 1<<60))},
}

// tolerating requires that a pod leaves the given time after the taint was added, or stays if the
// time is negative.
func tolerating(goes time.Duration, tolerations ...v1.Toleration) func(*scene, string) string {
	return func(s *scene, id string) string {
		pod := s.on(id, tolerations...)
		tainted := s.taint(id, "a")
		if goes < 0 {
			return s.staysUntil(pod, tainted.Add(4*time.Second))
		}
		return s.goesAt(pod, tainted.Add(goes))
	}
}

const nodesLate = 1500 * time.Millisecond

var lateNodes = []situation{
	{"a taint that is gone before the late watch of nodes shows it", func(s *scene, id string) string {
		pod := s.on(id)
		<-time.After(2 * nodesLate) // wait until the node is observed
		s.taint(id, "a")
		<-time.After(300 * time.Millisecond)
		return s.staysOrCrossed(pod, s.taint(id))
	}},
	{"a pod bound after its taint was gone, with a late watch of nodes", func(s *scene, id string) string {
		s.on(id, tolerates("a"))
		<-time.After(2 * nodesLate)
		s.taint(id, "a")
		<-time.After(nodesLate / 2)
		s.taint(id)
		<-time.After(nodesLate / 2)
		return s.staysUntil(s.again(id+"-late", id), time.Now().Add(3*nodesLate))
	}},
	{"the flap with a late watch of nodes: 1.5 s on, off, on", func(s *scene, id string) string {
		pod := s.on(id, tolerates("a", 4))
		<-time.After(2 * nodesLate)
		s.taint(id, "a")
		<-time.After(1500 * time.Millisecond)
		s.taint(id)
		<-time.After(100 * time.Millisecond)
		return s.goesAt(pod, s.taint(id, "a").Add(4*time.Second))
	}},
}

func (s *stage) staysOrCrossed(pod *v1.Pod, off time.Time) string {
	if wrong := s.staysUntil(pod, off.Add(3*nodesLate)); wrong != "" {
		if left, _ := s.when(pod.UID); left.After(off.Add(s.crossing())) {
			return fmt.Sprintf("the pod goes %.1f s after its taint", left.Sub(off).Seconds())
		}
	}
	return ""
}

// brokenWatches lists situations with a broken watch of pods. They run one after the other, because
// they share that watch.
var brokenWatches = []situation{
	{"evicted and back under its name while the watch of pods is broken", inTurn(func(s *scene, id string) string {
		pod := s.on(id)
		<-time.After(500 * time.Millisecond) // wait until the change is observed
		s.network.hold("pods")
		s.taint(id, "a")
		s.leavesBy(pod.UID, time.Now().Add(5*time.Second))
		pod = s.again(id, id)
		s.network.release("pods")
		return s.goesAt(pod, time.Now().Add(time.Second)) // the watch is established again within a second
	})},
	{"killed and back on another node while the watch of pods is broken", inTurn(func(s *scene, id string) string {
		s.on(id, tolerates("a", 4))
		s.on(id + "-else")
		s.taint(id, "a")
		<-time.After(500 * time.Millisecond)
		s.network.hold("pods")
		s.remove(id)
		pod := s.again(id, id+"-else", tolerates("a", 4))
		<-time.After(4 * time.Second)
		s.network.release("pods")
		return s.staysUntil(pod, time.Now().Add(2*time.Second))
	})},
}

var turn sync.Map // a mutex for each network

func inTurn(play func(*scene, string) string) func(*scene, string) string {
	return func(s *scene, id string) string {
		mu, _ := turn.LoadOrStore(s.network, &sync.Mutex{})
		mu.(*sync.Mutex).Lock()
		defer mu.(*sync.Mutex).Unlock()
		return play(s, id)
	}
}

// outages lists situations with an outage of the API server. They share one outage, which the first
// situation begins; it ends 10 s later.
var outages = []situation{
	{"due during an outage of 10 s", func(s *scene, id string) string {
		pod := s.on(id, tolerates("a", 5))
		s.taint(id, "a")
		return s.goesAt(pod, s.away())
	}},
	{"due right after an outage of 10 s", func(s *scene, id string) string {
		pod := s.on(id, tolerates("a", 14))
		tainted := s.taint(id, "a")
		s.away()
		return s.goesAt(pod, tainted.Add(14*time.Second))
	}},
	{"a taint that goes during an outage of 10 s", func(s *scene, id string) string {
		pod := s.on(id, tolerates("a", 8))
		s.taint(id, "a")
		back := s.awayFor(func() { s.taint(id) })
		return s.staysUntil(pod, back.Add(4*time.Second))
	}},
	{"a taint that comes during an outage of 10 s", func(s *scene, id string) string {
		pod := s.on(id)
		back := s.awayFor(func() { s.taint(id, "a") })
		return s.goesAt(pod, back)
	}},
	{"a toleration made longer during an outage of 10 s", func(s *scene, id string) string {
		pod := s.on(id, tolerates("a", 8))
		s.taint(id, "a")
		back := s.awayFor(func() { s.tolerate(id, 60) })
		return s.staysUntil(pod, back.Add(4*time.Second))
	}},
	{"a pod that comes back under its name, taint gone, during an outage of 10 s", func(s *scene, id string) string {
		s.on(id, tolerates("a", 8))
		s.taint(id, "a")
		var pod *v1.Pod
		back := s.awayFor(func() {
			s.remove(id)
			s.taint(id)
			pod = s.again(id, id, tolerates("a", 8))
		})
		return s.staysUntil(pod, back.Add(4*time.Second))
	}},
}

func (s *scene) away() time.Time { return s.awayFor(func() {}) }

// awayFor makes the API server unreachable for the controller. The outage begins two seconds after
// the first call for the network. awayFor calls meanwhile during the outage, waits for its end, and
// returns the time of its end.
func (s *scene) awayFor(meanwhile func()) time.Time {
	begin, _ := turn.LoadOrStore(s.network, time.Now().Add(2*time.Second))
	end := begin.(time.Time).Add(outage)
	<-time.After(time.Until(begin.(time.Time)))
	s.network.setDown(true)
	<-time.After(time.Second)
	meanwhile()
	<-time.After(time.Until(end))
	s.network.setDown(false)
	return end
}
