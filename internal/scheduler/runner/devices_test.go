// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/kube/fakeapi"
)

// aDriver returns a ResourceSlice with devices of a node, and their DeviceClass.
func aDriver(node string, devices ...string) []fakeapi.Object {
	slice := &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "slice-" + node},
		Spec: resourcev1.ResourceSliceSpec{
			Driver: "gpu.example.com", NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, ResourceSliceCount: 1},
		},
	}
	for _, name := range devices {
		slice.Spec.Devices = append(slice.Spec.Devices, resourcev1.Device{Name: name})
	}
	class := &resourcev1.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: "gpu"},
		Spec: resourcev1.DeviceClassSpec{Selectors: []resourcev1.DeviceSelector{{
			CEL: &resourcev1.CELDeviceSelector{Expression: `device.driver == "gpu.example.com"`},
		}}},
	}
	return []fakeapi.Object{slice, class}
}

func aClaim(name string) *resourcev1.ResourceClaim {
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
			Name: "one", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1},
		}}}},
	}
}

func claiming(pod *v1.Pod, claim string) *v1.Pod {
	pod.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claim}}
	return pod
}

// claimingLate makes the pod use the claim, and before it another claim without requests.
// isLateClaim reports whether a request is the write of the latter, which tests can delay.
func claimingLate(pod *v1.Pod, claim string) []fakeapi.Object {
	first := aClaim("first-" + pod.Name)
	first.Spec.Devices.Requests = nil
	claiming(pod, claim)
	pod.Spec.ResourceClaims = append([]v1.PodResourceClaim{{Name: "first", ResourceClaimName: &first.Name}}, pod.Spec.ResourceClaims...)
	return []fakeapi.Object{first, pod}
}

func isLateClaim(r *http.Request, pod string) bool { return isClaimUpdate(r, "first-"+pod) }

func (w *world) claim(name string) *resourcev1.ResourceClaim {
	for _, c := range fakeapi.All(w.api, &resourcev1.ResourceClaim{}) {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// TestClaimIsWrittenBeforeTheBinding verifies that the claim has its allocation, reservation and
// finalizer when the pod is bound, that the device is not allocated twice, and that a pod is gated
// until its missing claim is created.
func TestClaimIsWrittenBeforeTheBinding(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.Put(aNode("n", "9"), aNode("m", "9"))
		w.api.Put(aDriver("n", "gpu-0")...)
		w.api.Put(aClaim("c1"), claiming(aPod("a", "1"), "c1"))
		w.start(Options{})
		w.untilBound("a")
		claim := w.claim("c1")
		if w.nodeOf("a") != "n" || claim.Status.Allocation == nil || claim.Status.Allocation.Devices.Results[0].Device != "gpu-0" ||
			claim.Status.Allocation.AllocationTimestamp == nil || len(claim.Status.ReservedFor) != 1 || claim.Status.ReservedFor[0].UID != "uid-a" ||
			!slices.Contains(claim.Finalizers, resourcev1.Finalizer) {
			t.Errorf("a on %s, claim %+v %+v", w.nodeOf("a"), claim.Finalizers, claim.Status)
		}
		w.api.Put(claiming(aPod("b", "1"), "c2"))
		w.pass(time.Minute)
		if s := w.s.Sizes(); s.Gated != 1 {
			t.Errorf("%+v, want b to be kept out", s)
		}
		w.api.Put(aClaim("c2"))
		w.until("b is turned down", func() bool { return strings.Contains(w.condition("b"), "cannot allocate all claims") })
		w.api.Delete(aPod("a", "1"))
		// The claim controller deallocates the claim.
		fakeapi.Change(w.api, claim, func(c *resourcev1.ResourceClaim) { c.Status = resourcev1.ResourceClaimStatus{} })
		w.untilBound("b")
		if w.s.core.Books().Claims != 0 {
			t.Errorf("%d claims held", w.s.core.Books().Claims)
		}
	})
}

func isClaimUpdate(r *http.Request, claim string) bool {
	return r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/resourceclaims/"+claim)
}

// TestClaimMadeAnewUnderItsName verifies that if a claim is replaced by a claim of the same name,
// which has a different request, the decision about the first claim is not written to the second.
func TestClaimMadeAnewUnderItsName(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.SetFault(times(1, func(r *http.Request) bool { return isClaimUpdate(r, "c") }, fakeapi.Fault{Late: 10 * time.Second}))
		w.api.Put(aNode("n", "9"))
		w.api.Put(aDriver("n", "gpu-0", "gpu-1")...)
		w.api.Put(aClaim("c"), claiming(aPod("a", "1"), "c"))
		w.start(Options{})
		w.pass(time.Second)
		second := aClaim("c")
		second.Spec.Devices.Requests[0].Exactly.Count = 2
		w.api.Delete(second)
		w.api.Put(second)
		w.untilBound("a")
		if a := w.claim("c").Status.Allocation; a == nil || len(a.Devices.Results) != 2 {
			t.Errorf("the second claim got %+v, want two devices", a)
		}
	})
}

// TestClaimWriteThatHangs verifies that the pod is bound although the first write of its claim
// hangs.
func TestClaimWriteThatHangs(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.SetFault(times(1, func(r *http.Request) bool { return isClaimUpdate(r, "c") }, fakeapi.Fault{Late: 24 * time.Hour}))
		w.api.Put(aNode("n", "9"))
		w.api.Put(aDriver("n", "gpu-0")...)
		w.api.Put(aClaim("c"), claiming(aPod("a", "1"), "c"))
		w.start(Options{})
		w.untilBound("a")
	})
}

// TestClaimIsGivenBack verifies that the reservation of the claim is removed when the binding
// fails.
func TestClaimIsGivenBack(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.SetFault(times(1, func(r *http.Request) bool { return isBinding(r, "a") }, fakeapi.Fault{Status: http.StatusForbidden}))
		w.api.Put(aNode("n", "9"))
		w.api.Put(aDriver("n", "gpu-0")...)
		w.api.Put(aClaim("c"), claiming(aPod("a", "1"), "c"))
		w.start(Options{})
		w.until("a was refused", func() bool { return strings.Contains(w.condition("a"), "binding rejected") })
		w.pass(100 * time.Millisecond)
		if reserved := w.claim("c").Status.ReservedFor; len(reserved) != 0 {
			t.Errorf("still reserved for %v", reserved)
		}
		w.untilBound("a")
		if reserved := w.claim("c").Status.ReservedFor; len(reserved) != 1 {
			t.Errorf("reserved for %v", reserved)
		}
	})
}

// TestLateWatchDoesNotGiveADeviceTwice verifies that a device is not allocated twice while the
// watch of claims lags, and delivers the state before the allocation.
func TestLateWatchDoesNotGiveADeviceTwice(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.Put(aNode("n", "9"), aNode("m", "9"))
		w.api.Put(aDriver("n", "gpu-0")...)
		w.api.Put(aClaim("c1"), aClaim("c2"))
		w.start(Options{})
		w.until("begun", w.s.Synced)
		w.api.Hold("resourceclaims")
		w.api.Put(claiming(aPod("a", "1"), "c1"))
		w.untilBound("a")
		fakeapi.Change(w.api, aClaim("c2"), func(c *resourcev1.ResourceClaim) { c.Labels = map[string]string{"x": "y"} })
		w.api.Put(claiming(aPod("b", "1"), "c2"))
		w.pass(time.Minute)
		w.api.Release("resourceclaims")
		w.pass(time.Minute)
		if c := w.claim("c2"); w.nodeOf("b") != "" || c.Status.Allocation != nil {
			t.Errorf("b on %q with %+v", w.nodeOf("b"), c.Status)
		}
	})
}

// made counts the claims created for extended resources.
type made struct {
	cycle.NoObserver
	n atomic.Int32
}

func (m *made) MadeClaim(ok bool) {
	if ok {
		m.n.Add(1)
	}
}

// TestExtendedResourceFromDevices verifies that a claim is created for each pod that fits, and that
// the pod's status contains its name for the kubelet.
func TestExtendedResourceFromDevices(t *testing.T) {
	inWorld(t, func(w *world) {
		name := "example.com/gpu"
		objects := aDriver("n", "gpu-0", "gpu-1")
		objects[1].(*resourcev1.DeviceClass).Spec.ExtendedResourceName = &name
		w.api.Put(objects...)
		w.api.Put(aNode("n", "9"), aNode("m", "9"))
		w.api.SetFault(times(1, func(r *http.Request) bool { return isBinding(r, "a") }, fakeapi.Fault{Status: http.StatusForbidden}))
		for _, pod := range []string{"a", "b", "c"} {
			p := aPod(pod, "1")
			p.Spec.Containers[0].Resources.Requests[v1.ResourceName(name)] = *oneOf()
			w.api.Put(p)
		}
		var seen made
		w.start(Options{Observer: &seen})
		w.pass(5 * time.Minute)
		bound := 0
		for _, p := range w.api.Pods() {
			status := p.Status.ExtendedResourceClaimStatus
			if p.Spec.NodeName == "" {
				continue
			}
			bound++
			if p.Spec.NodeName != "n" || status == nil || len(status.RequestMappings) != 1 {
				t.Errorf("%s on %s: %+v", p.Name, p.Spec.NodeName, status)
				continue
			}
			claim := w.claim(status.ResourceClaimName)
			if claim == nil || claim.Status.Allocation == nil || len(claim.Status.ReservedFor) != 1 || claim.Status.ReservedFor[0].UID != p.UID {
				t.Errorf("claim %s of %s: %+v", status.ResourceClaimName, p.Name, claim)
			}
		}
		if n := len(fakeapi.All(w.api, &resourcev1.ResourceClaim{})); bound != 2 || n != 2 {
			t.Errorf("%d bound, %d claims; want two of each", bound, n)
		}
		if n := seen.n.Load(); n < 2 {
			t.Errorf("%d claims are counted", n)
		}
	})
}

// attempts counts the results of attempts.
type attempts struct {
	cycle.NoObserver
	mutex sync.Mutex
	ended map[cycle.Result]int
}

func (a *attempts) Attempted(_ string, result cycle.Result, _ time.Duration) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if a.ended == nil {
		a.ended = map[cycle.Result]int{}
	}
	a.ended[result]++
}

// TestSharedClaimIsProtected verifies that pods can share a claim whose allocation has been decided
// but not written. Whichever pod writes first, it must write the finalizer before the allocation,
// and no pod may consider the allocation of another pod as foreign.
func TestSharedClaimIsProtected(t *testing.T) {
	const pods = 30
	for name, late := range map[string]func(*http.Request) bool{
		"the first is ready first": func(r *http.Request) bool { return isClaimWrite(r, "c") },
		"the first is ready last":  func(r *http.Request) bool { return isLateClaim(r, "p00") },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.api.SetFault(times(1, late, fakeapi.Fault{Late: 3 * time.Second}))
				w.api.Put(aNode("n", "64"), aNode("m", "64"), aClaim("c"))
				w.api.Put(aDriver("n", "gpu-0")...)
				var seen attempts
				w.start(Options{Observer: &seen})
				w.until("begun", w.s.Synced)
				w.api.Put(claimingLate(aPod("p00", "1"), "c")...)
				for i := 1; i < pods; i++ {
					w.api.Put(claiming(aPod(fmt.Sprintf("p%02d", i), "1"), "c"))
				}
				w.pass(time.Minute)
				claim := w.claim("c")
				if claim.Status.Allocation == nil || !slices.Contains(claim.Finalizers, resourcev1.Finalizer) {
					t.Errorf("allocation %v, finalizers %v", claim.Status.Allocation, claim.Finalizers)
				}
				if got := len(claim.Status.ReservedFor); got != pods {
					t.Errorf("reserved for %d pods of %d", got, pods)
				}
				if want := map[cycle.Result]int{cycle.Scheduled: pods}; !maps.Equal(seen.ended, want) {
					t.Errorf("attempts %v, want %v", seen.ended, want)
				}
				if w.s.core.Books().Claims != 0 {
					t.Errorf("%d claims held", w.s.core.Books().Claims)
				}
			})
		})
	}
}

// TestSharedClaimOutlivesItsFirstPod verifies that if the pod for which a claim was allocated is
// deleted, the decision stays valid for the other pod that shares the claim. If that pod is deleted
// as well, the device is free.
func TestSharedClaimOutlivesItsFirstPod(t *testing.T) {
	for _, both := range []bool{false, true} {
		t.Run(fmt.Sprintf("both gone %t", both), func(t *testing.T) {
			inWorld(t, func(w *world) {
				waits := fakeapi.Fault{Late: 10 * time.Second}
				w.api.SetFault(times(2, func(r *http.Request) bool { return isLateClaim(r, "a") || isLateClaim(r, "b") }, waits))
				w.api.Put(aNode("n", "64"), aClaim("c"), aClaim("other"))
				w.api.Put(aDriver("n", "gpu-0")...)
				w.start(Options{})
				w.until("begun", w.s.Synced)
				w.api.Put(claimingLate(aPod("a", "1"), "c")...)
				w.pass(time.Second)
				w.api.Put(claimingLate(aPod("b", "1"), "c")...)
				w.pass(time.Second)
				w.api.Delete(aPod("a", "1"))
				w.pass(time.Second)
				if both {
					w.api.Delete(aPod("b", "1"))
					w.pass(time.Second)
				}
				w.api.Put(claiming(aPod("late", "1"), "other"))
				if both {
					w.untilBound("late")
					return
				}
				w.untilBound("b")
				w.pass(time.Minute)
				claim := w.claim("c")
				if claim.Status.Allocation == nil || !slices.Contains(claim.Finalizers, resourcev1.Finalizer) || len(claim.Status.ReservedFor) != 1 {
					t.Errorf("finalizers %v, status %+v", claim.Finalizers, claim.Status)
				}
				if on := w.nodeOf("late"); on != "" {
					t.Errorf("late got the device, too: on %s", on)
				}
			})
		})
	}
}

// TestAllocationTakenBackIsNotWrittenAgain verifies that if an allocation that the watch has not
// delivered yet is removed, it is not written again for a pod that shares the claim.
func TestAllocationTakenBackIsNotWrittenAgain(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.SetFault(times(1, func(r *http.Request) bool { return isLateClaim(r, "b") }, fakeapi.Fault{Late: 10 * time.Second}))
		w.api.Put(aNode("n", "64"), aClaim("c"))
		w.api.Put(aDriver("n", "gpu-0", "gpu-1")...)
		var seen attempts
		w.start(Options{Observer: &seen})
		w.until("begun", w.s.Synced)
		w.api.Hold("resourceclaims")
		w.api.Put(claiming(aPod("a", "1"), "c"))
		w.api.Put(claimingLate(aPod("b", "1"), "c")...)
		w.untilBound("a")
		w.api.Delete(aPod("a", "1"))
		// The claim controller deallocates the claim.
		fakeapi.Change(w.api, aClaim("c"), func(c *resourcev1.ResourceClaim) { c.Status = resourcev1.ResourceClaimStatus{} })
		w.pass(20 * time.Second)
		if c := w.claim("c"); w.nodeOf("b") != "" || c.Status.Allocation != nil {
			t.Errorf("b on %q with %+v", w.nodeOf("b"), c.Status)
		}
		w.api.Release("resourceclaims")
		w.untilBound("b")
		if c := w.claim("c"); len(c.Status.ReservedFor) != 1 || c.Status.Allocation == nil || seen.ended[cycle.Errored] == 0 {
			t.Errorf("attempts %v, %+v", seen.ended, c.Status)
		}
	})
}

func isClaimWrite(r *http.Request, claim string) bool {
	return r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/resourceclaims/"+claim)
}

func isPodPatch(r *http.Request, pod string) bool {
	return r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/pods/"+pod+"/status")
}

// TestWhatIsGivenBackHelpsWhoWaitsForIt verifies that if a pod is deleted before the allocation of
// its device or volume is written, a pod that waits for the device or volume is retried, although
// no watch delivers the allocation or its end.
func TestWhatIsGivenBackHelpsWhoWaitsForIt(t *testing.T) {
	inTurn := func(t *testing.T, objects []fakeapi.Object, use func(pod *v1.Pod, claim string) *v1.Pod, has func(w *world) bool) {
		inWorld(t, func(w *world) {
			w.api.SetFault(times(1, func(r *http.Request) bool { return isPodPatch(r, "a") || isClaimUpdate(r, "first") },
				fakeapi.Fault{Late: 10 * time.Second}))
			w.api.Put(aNode("n", "9"))
			w.api.Put(objects...)
			w.start(Options{})
			w.until("begun", w.s.Synced)
			w.api.Put(use(aPod("a", "1"), "first"))
			w.pass(time.Second)
			w.api.Put(use(aPod("b", "1"), "second"))
			w.until("b is turned down", func() bool { return w.condition("b") != "" })
			w.api.Delete(aPod("a", "1"))
			w.pass(30 * time.Second)
			if !has(w) {
				t.Errorf("b waits on: %s", w.condition("b"))
			}
		})
	}
	t.Run("device", func(t *testing.T) {
		inTurn(t, append(aDriver("n", "gpu-0"), aClaim("first"), aClaim("second")), claiming, func(w *world) bool { return w.nodeOf("b") == "n" })
	})
	t.Run("volume", func(t *testing.T) {
		class, late := "local", storagev1.VolumeBindingWaitForFirstConsumer
		gibibyte := v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
		modes := []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
		volume := &v1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "disk"},
			Spec: v1.PersistentVolumeSpec{
				StorageClassName: class, AccessModes: modes, Capacity: gibibyte,
				PersistentVolumeSource: v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/disk"}},
			},
			Status: v1.PersistentVolumeStatus{Phase: v1.VolumeAvailable},
		}
		objects := []fakeapi.Object{volume, &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: &late,
		}}
		for _, name := range []string{"first", "second"} {
			objects = append(objects, &v1.PersistentVolumeClaim{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
				Spec: v1.PersistentVolumeClaimSpec{
					StorageClassName: &class, AccessModes: modes, Resources: v1.VolumeResourceRequirements{Requests: gibibyte},
				},
			})
		}
		use := func(pod *v1.Pod, claim string) *v1.Pod {
			pod.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}}}
			return pod
		}
		inTurn(t, objects, use, func(w *world) bool {
			ref := fakeapi.All(w.api, &v1.PersistentVolume{})[0].Spec.ClaimRef
			return ref != nil && ref.Name == "second"
		})
	})
}
