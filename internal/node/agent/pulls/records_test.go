package pulls

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	config "k8s.io/kubelet/config/v1beta1"
)

const (
	image = "registry.example.com/team/app:1"
	ref   = "sha256:app"
)

func open(t *testing.T, dir string, policy Policy, present map[string]string) *Records {
	t.Helper()
	if err := policy.Check(); err != nil {
		t.Fatal(err)
	}
	r, err := Open(dir, policy, present)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func mayUse(t *testing.T, r *Records, image, ref string, shown ...config.ImagePullSecret) bool {
	t.Helper()
	may, err := r.MayUse(image, ref, func() ([]config.ImagePullSecret, error) { return shown, nil })
	if err != nil {
		t.Fatal(err)
	}
	return may
}

func pull(t *testing.T, r *Records, secret *config.ImagePullSecret) {
	t.Helper()
	if err := r.Begin(image); err != nil {
		t.Fatal(err)
	}
	r.Done(image, ref, secret)
}

// An image pulled with a secret may be used by pods that bring the same secret or equal
// credentials; records outlive the agent.
func TestImageIsForWhoCanPullIt(t *testing.T) {
	dir := t.TempDir()
	mine := Secret("1", "a", "mine", "login")
	pull(t, open(t, dir, Policy{}, nil), &mine)
	r := open(t, dir, Policy{}, map[string]string{image: ref})
	for what, c := range map[string]struct {
		shown []config.ImagePullSecret
		may   bool
	}{
		"nothing":               {nil, false},
		"the secret":            {[]config.ImagePullSecret{mine}, true},
		"a wrong one":           {[]config.ImagePullSecret{Secret("2", "b", "other", "wrong")}, false},
		"a copy":                {[]config.ImagePullSecret{Secret("3", "c", "copy", "login")}, true},
		"the secret, rotated":   {[]config.ImagePullSecret{Secret("1", "a", "mine", "new")}, true},
		"another of its name":   {[]config.ImagePullSecret{Secret("4", "a", "mine", "wrong")}, false},
		"a wrong one, then it":  {[]config.ImagePullSecret{Secret("2", "b", "other", "wrong"), mine}, true},
		"one that has no login": {[]config.ImagePullSecret{{UID: "9", Namespace: "x", Name: "y"}}, false},
	} {
		if may := mayUse(t, r, image, ref, c.shown...); may != c.may {
			t.Errorf("a pod that shows %s: may %t, want %t", what, may, c.may)
		}
	}
	if mayUse(t, r, "registry.example.com/other/name:1", ref, mine) {
		t.Error("the same image under the name of another repository may be used")
	}
}

// What was pulled with the node's credentials, or with none, is for all pods of the node.
func TestImageOfTheNodeIsForAll(t *testing.T) {
	r := open(t, t.TempDir(), Policy{}, nil)
	mine := Secret("1", "a", "mine", "login")
	pull(t, r, &mine)
	pull(t, r, nil)
	if !mayUse(t, r, image, ref) {
		t.Error("it may not be used")
	}
}

func TestPolicies(t *testing.T) {
	mine := Secret("1", "a", "mine", "login")
	for _, c := range []struct {
		policy            Policy
		pulled, preloaded bool // may be used by a pod that shows nothing
	}{
		{Policy{}, false, true},
		{Policy{Name: config.NeverVerify}, true, true},
		{Policy{Name: config.NeverVerifyPreloadedImages}, false, true},
		{Policy{Name: config.AlwaysVerify}, false, false},
		{Policy{Name: config.NeverVerifyAllowlistedImages, Allowlist: []string{"registry.example.com/team/*"}}, true, false},
		{Policy{Name: config.NeverVerifyAllowlistedImages, Allowlist: []string{"registry.example.com/team"}}, false, false},
		{Policy{Name: config.NeverVerifyAllowlistedImages, Allowlist: []string{"other.example.com/pre"}}, false, true},
	} {
		r := open(t, t.TempDir(), c.policy, nil)
		pull(t, r, &mine)
		if got := mayUse(t, r, image, ref); got != c.pulled {
			t.Errorf("%v: an image that was pulled: %t, want %t", c.policy, got, c.pulled)
		}
		if got := mayUse(t, r, "other.example.com/pre:2", "sha256:pre"); got != c.preloaded {
			t.Errorf("%v: a preloaded image: %t, want %t", c.policy, got, c.preloaded)
		}
	}
	for _, wrong := range []Policy{
		{Name: "Sometimes"}, {Allowlist: []string{"a"}}, {Name: config.NeverVerifyAllowlistedImages},
		{Name: config.NeverVerifyAllowlistedImages, Allowlist: []string{"a:1"}}, {Name: config.NeverVerifyAllowlistedImages, Allowlist: []string{"/*"}},
	} {
		if wrong.Check() == nil {
			t.Errorf("%v is taken", wrong)
		}
	}
}

// An agent that is killed between the beginning and the end of a pull leaves an image that does not
// count as preloaded.
func TestPullThatWasCutOff(t *testing.T) {
	dir := t.TempDir()
	if err := open(t, dir, Policy{}, nil).Begin(image); err != nil {
		t.Fatal(err)
	}
	if mayUse(t, open(t, dir, Policy{}, nil), image, ref) {
		t.Error("may be used while nobody knows whether it is there")
	}
	r := open(t, dir, Policy{}, map[string]string{image: ref})
	if mayUse(t, r, image, ref) {
		t.Error("may be used")
	}
	if left, _ := os.ReadDir(r.pulling); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	pull(t, r, nil)
	if !mayUse(t, r, image, ref) {
		t.Error("may not be used once it was pulled")
	}
}

// Two pulls of one image at once: the first that ends does not end the other.
func TestIntentsAreCounted(t *testing.T) {
	r := open(t, t.TempDir(), Policy{}, nil)
	for range 2 {
		if err := r.Begin(image); err != nil {
			t.Fatal(err)
		}
	}
	r.Failed(image)
	if mayUse(t, r, image, ref) {
		t.Error("counts as preloaded while it is being pulled")
	}
	r.Failed(image)
	if !mayUse(t, r, image, ref) {
		t.Error("counts as pulled though no pull was done")
	}
}

// What a pull brought has no record: it is not preloaded, also after further pulls that failed,
// until one is recorded. Nothing is left then.
func TestPullWithoutARecordIsMadeUpFor(t *testing.T) {
	mine := Secret("1", "a", "mine", "login")
	for what, begin := range map[string]func(t *testing.T, r *Records){
		"not written": func(t *testing.T, r *Records) {
			if err := os.Rename(r.pulled, r.pulled+".away"); err != nil {
				t.Fatal(err)
			}
			pull(t, r, &mine)
			if err := os.Rename(r.pulled+".away", r.pulled); err != nil {
				t.Fatal(err)
			}
		},
		"unknown": func(t *testing.T, r *Records) {
			if err := r.Begin(image); err != nil {
				t.Fatal(err)
			}
			r.Unknown(image)
		},
		"cut off": func(t *testing.T, r *Records) {
			if err := r.Begin(image); err != nil {
				t.Fatal(err)
			}
			*r = *open(t, filepath.Dir(filepath.Dir(r.pulled)), Policy{}, nil)
		},
	} {
		t.Run(what, func(t *testing.T) {
			r := open(t, t.TempDir(), Policy{}, nil)
			begin(t, r)
			for range 2 {
				if mayUse(t, r, image, ref) {
					t.Error("counts as preloaded")
				}
				if err := r.Begin(image); err != nil {
					t.Fatal(err)
				}
				r.Failed(image)
			}
			pull(t, r, &mine)
			if !mayUse(t, r, image, ref, mine) || mayUse(t, r, image, ref) {
				t.Error("the record of the last pull does not count")
			}
			if left, _ := os.ReadDir(r.pulling); len(left) > 0 || len(r.intents) > 0 {
				t.Errorf("left: %v, %v", left, r.intents)
			}
		})
	}
}

func TestRecordsGoWithTheirImages(t *testing.T) {
	r := open(t, t.TempDir(), Policy{}, nil)
	mine := Secret("1", "a", "mine", "login")
	pull(t, r, &mine)
	r.Prune(map[string]bool{ref: true}, time.Now().Add(time.Hour))
	r.Prune(nil, time.Now().Add(-time.Second))
	if mayUse(t, r, image, ref) {
		t.Fatal("the record is gone before its image")
	}
	r.Prune(nil, time.Now().Add(time.Hour))
	if entries, _ := os.ReadDir(r.pulled); len(entries) > 0 {
		t.Errorf("left: %v", entries)
	}
}

// Whatever is in the files, nobody may use an image for it who could not without, and nothing
// panics.
func FuzzRecordFiles(f *testing.F) {
	f.Add([]byte(`{"imageRef":"sha256:app","credentialMapping":{"registry.example.com/team/app":{"kubernetesSecrets":[{"uid":"1"}]}}}`))
	f.Add([]byte(`{"imageRef":"sha256:other","credentialMapping":{"registry.example.com/team/app":{"nodePodsAccessible":true}}}`))
	f.Add([]byte(`{`))
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, text []byte) {
		dir := t.TempDir()
		r := open(t, dir, Policy{Name: config.AlwaysVerify}, nil)
		for _, path := range []string{r.recordFile(ref), r.intentFile(image), filepath.Join(r.pulling, "sha256-0")} {
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		r = open(t, dir, Policy{Name: config.AlwaysVerify}, map[string]string{image: ref})
		record, err := r.record(ref)
		may := mayUse(t, r, image, ref)
		if may && (err != nil || record == nil || !record.CredentialMapping["registry.example.com/team/app"].NodePodsAccessible) {
			t.Errorf("may be used, by a record of %q", text)
		}
		r.Prune(nil, time.Now().Add(time.Hour))
		pull(t, r, nil)
		if !mayUse(t, r, image, ref) {
			t.Errorf("cannot be recorded any more, after %q", text)
		}
	})
}

// TestFilesThatAKillHasLeft before they had their names are removed, and say nothing.
func TestFilesThatAKillHasLeft(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir, Policy{}, nil)
	if err := r.Begin(image); err != nil {
		t.Fatal(err)
	}
	intent := r.intentFile(image)
	for _, left := range []string{filepath.Join(r.pulling, ".new-1"), filepath.Join(r.pulled, ".new-2")} {
		if err := os.Link(intent, left); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(intent); err != nil {
		t.Fatal(err)
	}
	r = open(t, dir, Policy{}, nil)
	for _, folder := range []string{r.pulling, r.pulled} {
		if entries, err := os.ReadDir(folder); err != nil || len(entries) > 0 {
			t.Errorf("left in %s: %v, %v", folder, entries, err)
		}
	}
	if !mayUse(t, r, image, ref) {
		t.Error("a pull that was never recorded counts")
	}
}
