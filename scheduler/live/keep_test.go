package live

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/berth-k8s/berth/cluster"
	"github.com/berth-k8s/berth/plugins"
)

// TestWhatIsKeptOfAPodIsDecidedTheSame: a pod of which little is kept is of the same class, and has a place in the same queue.
func TestWhatIsKeptOfAPodIsDecidedTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := cluster.New()
		s := &Scheduler{cluster: c}
		for i := range 8 {
			pod := aPod(rapid.StringN(1, 5, 5).Draw(t, "name"), rapid.SampledFrom([]string{"1", "2"}).Draw(t, "cpu"))
			pod.UID = types.UID(string(rune('a' + i)))
			pod.Labels = map[string]string{"app": rapid.SampledFrom([]string{"a", "b"}).Draw(t, "app")}
			pod.Annotations = map[string]string{"note": pod.Name}
			pod.Spec.Containers[0].Name = rapid.SampledFrom([]string{"c", "d"}).Draw(t, "container")
			pod.Spec.Containers[0].Env = []v1.EnvVar{{Name: "OWN", Value: pod.Name}}
			if rapid.Bool().Draw(t, "volume") {
				pod.Spec.Volumes = []v1.Volume{{Name: "token-" + pod.Name, VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{}}}}
			}
			if rapid.Bool().Draw(t, "claim") {
				pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}})
			}
			if rapid.Bool().Draw(t, "gated") {
				pod.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "g"}}
			}
			p := c.Pending(pod)
			kept := s.kept(pod, p.Class)
			if again := c.Pending(kept); again.Class != p.Class || again.Name != p.Name || again.UID != p.UID {
				t.Fatalf("%v is decided as %v", pod, kept)
			}
			if kept.Spec.Containers[0].Name != pod.Spec.Containers[0].Name || len(kept.Spec.Volumes) != len(pod.Spec.Volumes) {
				t.Fatalf("%v is kept as %v", pod, kept)
			}
			if a := changes(pod, kept, false); a != 0 {
				t.Fatalf("what is kept of %v is taken for a change: %b", pod, a)
			}
		}
	})
}

// shownPods is somebody from outside who keeps pods.
type shownPods map[types.UID]*v1.Pod

func (s shownPods) Pod(pod *v1.Pod)             { s[pod.UID] = pod }
func (s shownPods) PodGone(uid types.UID)       { delete(s, uid) }
func (s shownPods) Node(*v1.Node)               {}
func (s shownPods) NodeGone(string)             {}
func (s shownPods) Shown(uid types.UID) *v1.Pod { return s[uid] }
func withEnv(pod *v1.Pod, value string) *v1.Pod {
	pod.Spec.Containers[0].Env = []v1.EnvVar{{Name: "OWN", Value: value}}
	return pod
}

// onlooker is a plugin from outside that reads what Berth does not.
type onlooker struct{ saw map[string]string }

func (*onlooker) Name() string { return "Onlooker" }
func (o *onlooker) Admit(pod *v1.Pod) *plugins.Rejection {
	o.saw[pod.Name] = pod.Spec.Containers[0].Env[0].Value
	return nil
}

// TestPluginsFromOutsideSeePodsAsTheyAre, also pods that came before the plugin.
func TestPluginsFromOutsideSeePodsAsTheyAre(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.Put(withEnv(aPod("p1", "1"), "one"), withEnv(aPod("p2", "1"), "two"))
		w.start(Options{Objects: shownPods{}})
		w.until("both wait", func() bool { return w.condition("p1") != "" && w.condition("p2") != "" })
		o := &onlooker{map[string]string{}}
		profile := plugins.Default()
		profile.At[plugins.PreEnqueue] = append(profile.At[plugins.PreEnqueue], o.Name())
		if err := w.s.SetProfiles(w.Context(), []Profile{{Profile: profile, Extensions: []Extension{o}}}); err != nil {
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
