package volumes

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestConfigMapIsShownUnderItsKeys(t *testing.T) {
	w := newWorld(t)
	w.setConfigMap("settings", map[string]string{"a.conf": "A", "b.conf": "B"})
	w.configMaps["settings"].BinaryData = map[string][]byte{"raw": {0, 255}}
	p := pod(t, `
- {name: all, configMap: {name: settings, defaultMode: 0400}}
- {name: some, configMap: {name: settings, items: [{key: a.conf, path: deep/down/a, mode: 0640}, {key: raw, path: r}]}}
`)
	w.mustMount(p)

	if got := names(t, w.dir(p, "all")); !slices.Equal(got, []string{"a.conf", "b.conf", "raw"}) {
		t.Errorf("shown: %v", got)
	}
	if got := w.read(p, "all", "raw"); got != "\x00\xff" {
		t.Errorf("raw is %q", got)
	}
	if got := mode(t, filepath.Join(w.dir(p, "all"), "a.conf")); got != 0o400 {
		t.Errorf("mode %v, want the volume's", got)
	}
	if got := names(t, w.dir(p, "some")); !slices.Equal(got, []string{"deep", "r"}) {
		t.Errorf("shown: %v", got)
	}
	if got := mode(t, filepath.Join(w.dir(p, "some"), "deep/down/a")); got != 0o640 {
		t.Errorf("mode %v, want the item's", got)
	}
	if got := mode(t, filepath.Join(w.dir(p, "some"), "r")); got != 0o644 {
		t.Errorf("mode %v, want the default", got)
	}
	if to, err := os.Readlink(filepath.Join(w.dir(p, "all"), "a.conf")); to != "..data/a.conf" {
		t.Errorf("a.conf leads to %q (%v); programs that watch expect ..data", to, err)
	}
	if want := filepath.Join(w.PodDir(p.UID), "volumes/kubernetes.io~configmap/all"); w.dir(p, "all") != want {
		t.Errorf("lies at %s, a kubelet's at %s", w.dir(p, "all"), want)
	}
}

func TestSecretIsKeptInMemory(t *testing.T) {
	needsRoot(t)
	w := newWorld(t)
	w.setSecret("password", map[string][]byte{"user": []byte("me"), "password": []byte("geheim")})
	p := pod(t, `[{name: s, secret: {secretName: password, items: [{key: password, path: p}]}}]`)
	w.mustMount(p)
	if got := w.read(p, "s", "p"); got != "geheim" {
		t.Errorf("got %q", got)
	}
	if mounted, err := isMountPoint(w.dir(p, "s")); !mounted {
		t.Errorf("it is on disk (%v)", err)
	}
}

func TestDownwardAPIVolume(t *testing.T) {
	needsRoot(t)
	w := newWorld(t)
	p := pod(t, `
- name: info
  downwardAPI:
    items:
    - {path: labels, fieldRef: {fieldPath: metadata.labels}}
    - {path: one, fieldRef: {fieldPath: "metadata.labels['a']"}, mode: 0600}
    - {path: cpu, resourceFieldRef: {containerName: main, resource: limits.cpu, divisor: 1m}}
    - {path: memory, resourceFieldRef: {containerName: main, resource: requests.memory, divisor: 1Mi}}
`)
	w.mustMount(p)
	for path, want := range map[string]string{"labels": "a=\"one\"\nb=\"two\"", "one": "one", "cpu": "4000", "memory": "0"} {
		if got := w.read(p, "info", path); got != want {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
	changed := p.DeepCopy()
	changed.Labels = map[string]string{"a": "1"}
	w.mustMount(changed)
	if got := w.read(p, "info", "labels"); got != `a="1"` {
		t.Errorf("after a change of the labels: %q", got)
	}
}

func TestWhatIsMissingIsNamedAsUsersKnowIt(t *testing.T) {
	needsRoot(t)
	w := newWorld(t)
	w.setConfigMap("there", map[string]string{"a": "A"})
	w.setSecret("there", map[string][]byte{"a": []byte("A")})
	for volumes, text := range map[string]string{
		`[{name: x, configMap: {name: absent}}]`:                                                `MountVolume.SetUp failed for volume "x" : configmap "absent" not found`,
		`[{name: x, secret: {secretName: absent}}]`:                                             `MountVolume.SetUp failed for volume "x" : secret "absent" not found`,
		`[{name: x, configMap: {name: there, items: [{key: k, path: p}]}}]`:                     `MountVolume.SetUp failed for volume "x" : configmap references non-existent config key: k`,
		`[{name: x, secret: {secretName: there, items: [{key: k, path: p}]}}]`:                  `MountVolume.SetUp failed for volume "x" : references non-existent secret key: k`,
		`[{name: x, projected: {sources: [{configMap: {name: absent}}, {secret: {name: z}}]}}]`: `MountVolume.SetUp failed for volume "x" : [configmap "absent" not found, secret "z" not found]`,
		`[{name: x, projected: {sources: [{configMap: {name: there}}, {secret: {name: z}}]}}]`:  `MountVolume.SetUp failed for volume "x" : secret "z" not found`,
		`[{name: x, nfs: {server: s, path: /p}}]`:                                               `MountVolume.SetUp failed for volume "x" : this node's agent has no volumes of this type (nfs)`,
		`[{name: x, emptyDir: {medium: HugePages}}]`:                                            `MountVolume.SetUp failed for volume "x" : unknown storage medium "HugePages"`,
	} {
		err := w.Mount(context.Background(), pod(t, volumes))
		wantError(t, err, text)
		var failed *SetUpErrors
		if !errors.As(err, &failed) || !failed.Blocking() {
			t.Errorf("%s: containers would not wait", text)
		}
	}
	for _, volumes := range []string{
		`[{name: x, configMap: {name: absent, optional: true}}]`,
		`[{name: x, secret: {secretName: absent, optional: true}}]`,
		`[{name: x, configMap: {name: there, optional: true, items: [{key: k, path: p}]}}]`,
		`[{name: x, projected: {sources: [{configMap: {name: absent, optional: true}}, {secret: {name: z, optional: true}}]}}]`,
	} {
		p := pod(t, volumes)
		p.UID = "optional"
		w.mustMount(p)
		if got := names(t, w.dir(p, "x")); len(got) > 0 {
			t.Errorf("%s: shows %v", volumes, got)
		}
		if err := w.Unmount(t.Context(), p.UID); err != nil {
			t.Fatal(err)
		}
	}
}

func TestVolumeThatNoContainerMountsIsNotMissed(t *testing.T) {
	w := newWorld(t)
	p := pod(t, `[{name: x, configMap: {name: absent}}]`)
	p.Spec.Containers[0].VolumeMounts = nil
	w.mustMount(p)
}

func TestRunningPodKeepsWhatItHasWhenTheObjectGoes(t *testing.T) {
	w := newWorld(t)
	w.setConfigMap("settings", map[string]string{"a": "A"})
	p := pod(t, `[{name: x, configMap: {name: settings}}]`)
	w.mustMount(p)
	delete(w.configMaps, "settings")
	err := w.Mount(context.Background(), p)
	var failed *SetUpErrors
	if !errors.As(err, &failed) || failed.Blocking() {
		t.Errorf("want an error that stops no container, got %v", err)
	}
	if got := w.read(p, "x", "a"); got != "A" {
		t.Errorf("got %q", got)
	}
}

func TestHostPathIsCheckedBeforeThePodRuns(t *testing.T) {
	w := newWorld(t)
	path := filepath.Join(t.TempDir(), "socket")
	write(t, path, "")
	p := pod(t, `[{name: x, hostPath: {path: `+path+`, type: File}}]`)
	w.mustMount(p)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	w.mustMount(p) // a container that starts anew is the runtime's business
}

func tokenPod(t *testing.T) *v1.Pod {
	return pod(t, `
- name: access
  projected:
    defaultMode: 0644
    sources:
    - serviceAccountToken: {path: token, expirationSeconds: 3600, audience: vault}
    - configMap: {name: root, items: [{key: ca.crt, path: ca.crt}]}
    - downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}
`)
}

func TestTokenIsBoundToThePod(t *testing.T) {
	needsRoot(t)
	w := newWorld(t)
	w.setConfigMap("root", map[string]string{"ca.crt": "CA"})
	p := tokenPod(t)
	w.mustMount(p)
	if got := names(t, w.dir(p, "access")); !slices.Equal(got, []string{"ca.crt", "namespace", "token"}) {
		t.Errorf("shown: %v", got)
	}
	if got := w.read(p, "access", "token") + " " + w.read(p, "access", "namespace"); got != "token-1 shop" {
		t.Errorf("got %q", got)
	}
	spec := w.requests[0].Spec
	if ref := spec.BoundObjectRef; ref.Kind != "Pod" || ref.Name != "web" || ref.UID != p.UID || *spec.ExpirationSeconds != 3600 || !slices.Equal(spec.Audiences, []string{"vault"}) {
		t.Errorf("asked for %+v bound to %+v", spec, ref)
	}
	if got := mode(t, filepath.Join(w.dir(p, "access"), "token")); got != 0o644 {
		t.Errorf("mode %v", got)
	}
}

func TestTokenIsForItsUserAndGroupAlone(t *testing.T) {
	needsRoot(t)
	w := newWorld(t)
	w.setConfigMap("root", map[string]string{"ca.crt": "CA"})
	p := tokenPod(t)
	p.Spec.SecurityContext = &v1.PodSecurityContext{RunAsUser: ptr[int64](1001), FSGroup: ptr[int64](2002)}
	w.mustMount(p)
	token, err := filepath.EvalSymlinks(filepath.Join(w.dir(p, "access"), "token"))
	if err != nil {
		t.Fatal(err)
	}
	if uid, gid := owner(t, token); uid != 1001 || gid != 2002 || mode(t, token) != 0o640 {
		t.Errorf("token of %d:%d, mode %v; want 1001:2002 and 0640", uid, gid, mode(t, token))
	}
}

// A token of an hour is replaced after 48 minutes; when that fails, the old one serves to its end,
// and no longer.
func TestTokenIsRenewedInTime(t *testing.T) {
	needsRoot(t)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.setConfigMap("root", map[string]string{"ca.crt": "CA"})
		p := tokenPod(t)
		ctx, cancel := context.WithCancel(context.Background())
		go w.Run(ctx)
		w.mustMount(p)
		at := func(minutes time.Duration, want string) {
			t.Helper()
			synctest.Wait()
			if got := w.read(p, "access", "token"); got != want {
				t.Errorf("after %d minutes the token is %s, want %s", minutes, got, want)
			}
		}
		time.Sleep(47 * time.Minute)
		at(47, "token-1")
		time.Sleep(2 * time.Minute)
		at(49, "token-2")

		w.refuseTokens(errors.New("no"))
		time.Sleep(59 * time.Minute)
		at(49+59, "token-2")
		w.mustMount(p) // a container that starts anew gets the old one
		time.Sleep(2 * time.Minute)
		err := w.Mount(ctx, p)
		wantError(t, err, `MountVolume.SetUp failed for volume "access" : token shop/robot for pod 0b5c8a2e, audiences [vault], 3600s expired and refresh failed: no`)
		w.refuseTokens(nil)
		time.Sleep(time.Minute)
		at(49+62, "token-3")
		cancel()
		synctest.Wait()
	})
}

func TestRefusedTokenIsNamed(t *testing.T) {
	needsRoot(t)
	w := newWorld(t)
	w.setConfigMap("root", map[string]string{"ca.crt": "CA"})
	w.refuseTokens(errors.New(`serviceaccounts "robot" not found`))
	wantError(t, w.Mount(context.Background(), tokenPod(t)),
		`MountVolume.SetUp failed for volume "access" : failed to fetch token: serviceaccounts "robot" not found`)
}

func TestChangeIsShownAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.setConfigMap("settings", map[string]string{"a": "before"})
		p := pod(t, `[{name: x, configMap: {name: settings}}]`)
		ctx, cancel := context.WithCancel(context.Background())
		go w.Run(ctx)
		w.mustMount(p)
		w.setConfigMap("settings", map[string]string{"a": "after"})
		w.Changed(p.UID)
		synctest.Wait()
		if got := w.read(p, "x", "a"); got != "after" {
			t.Errorf("got %q", got)
		}
		cancel()
		synctest.Wait()
	})
}

// A pod whose volume takes long holds up no other, and is refreshed once more for what has changed
// meanwhile.
func TestSlowVolumeHoldsUpNoOtherPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		slow, quick := pod(t, `[{name: x, configMap: {name: slow}}]`), pod(t, `[{name: x, configMap: {name: quick}}]`)
		slow.UID, quick.UID = "slow", "quick"
		for _, p := range []*v1.Pod{slow, quick} {
			w.setConfigMap(string(p.UID), map[string]string{"a": "before"})
			w.mustMount(p)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		w.slow = make(chan struct{})
		go func() { w.Run(ctx); close(ended) }()
		w.Changed(slow.UID)
		synctest.Wait()
		w.setConfigMap("quick", map[string]string{"a": "after"})
		w.Changed(quick.UID)
		synctest.Wait()
		if got := w.read(quick, "x", "a"); got != "after" {
			t.Errorf("the other pod has %q", got)
		}
		time.Sleep(2 * refreshEvery)
		w.Changed(slow.UID)
		w.setConfigMap("slow", map[string]string{"a": "after"})
		synctest.Wait()
		close(w.slow)
		synctest.Wait()
		if got := w.read(slow, "x", "a"); got != "after" {
			t.Errorf("the slow pod has %q", got)
		}
		cancel()
		<-ended
	})
}

// What was not mounted is not mounted by an update; what was, also by the agent that was killed,
// follows.
func TestUpdateIsShownByTheNextAgent(t *testing.T) {
	needsRoot(t)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := pod(t, `[{name: info, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}]`)
		w.mustMount(p)
		next := w.restarted()
		ctx, cancel := context.WithCancel(context.Background())
		go next.Run(ctx)
		changed, other := p.DeepCopy(), p.DeepCopy()
		changed.Labels, other.UID = map[string]string{"a": "1"}, "other"
		next.Update(changed)
		next.Update(other)
		synctest.Wait()
		if got := w.read(p, "info", "labels"); got != `a="1"` {
			t.Errorf("got %q", got)
		}
		if found, err := next.OnDisk(); err != nil || len(found) != 1 {
			t.Errorf("on disk: %v (%v)", found, err)
		}
		if err := next.Unmount(t.Context(), p.UID); err != nil {
			t.Error(err)
		}
		next.Changed(p.UID)
		next.Update(p)
		synctest.Wait()
		if found, err := next.OnDisk(); err != nil || len(found) > 0 {
			t.Errorf("on disk: %v (%v)", found, err)
		}
		cancel()
		synctest.Wait()
	})
}

func TestNestedMountPointsAreThere(t *testing.T) {
	w := newWorld(t)
	w.setConfigMap("settings", map[string]string{"a": "A"})
	p := pod(t, `[{name: outer, configMap: {name: settings}}, {name: inner, emptyDir: {}}, {name: innermost, emptyDir: {}}]`)
	p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{
		{Name: "innermost", MountPath: "/etc/app/cache/deep"}, {Name: "inner", MountPath: "/etc/app/cache"}, {Name: "outer", MountPath: "/etc/app/"},
	}
	w.mustMount(p)
	w.mustMount(p)
	if got := names(t, w.dir(p, "outer")); !slices.Equal(got, []string{"a", "cache"}) {
		t.Errorf("in the outer volume there is %v", got)
	}
	if got := names(t, filepath.Join(w.dir(p, "outer"), "cache")); len(got) > 0 {
		t.Errorf("the innermost one is the inner one's business, but there is %v", got)
	}
}

// A pod from a file has been through no validation.
func TestPathTricksAreRefused(t *testing.T) {
	needsRoot(t)
	w := newWorld(t)
	w.setConfigMap("settings", map[string]string{"a": "A"})
	for _, volumes := range []string{
		`[{name: x, configMap: {name: settings, items: [{key: a, path: ../../../escaped}]}}]`,
		`[{name: x, configMap: {name: settings, items: [{key: a, path: /escaped}]}}]`,
		`[{name: x, configMap: {name: settings, items: [{key: a, path: ..data}]}}]`,
		`[{name: x, downwardAPI: {items: [{path: ../../escaped, fieldRef: {fieldPath: metadata.name}}]}}]`,
		`[{name: "..", emptyDir: {}}]`,
		`[{name: "../../../../escaped", emptyDir: {}}]`,
		`[{name: "a/b", emptyDir: {}}]`,
	} {
		if err := w.Mount(context.Background(), pod(t, volumes)); err == nil {
			t.Errorf("%s was mounted", volumes)
		}
	}
	for _, uid := range []string{"", ".", "..", "../escaped", "a/b"} {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}}
		if err := w.Mount(context.Background(), p); err == nil {
			t.Errorf("pod %q was mounted", uid)
		}
		if err := w.Unmount(t.Context(), p.UID); err == nil {
			t.Errorf("pod %q was unmounted", uid)
		}
	}
}
