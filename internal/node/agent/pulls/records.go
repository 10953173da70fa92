package pulls

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/distribution/reference"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	config "k8s.io/kubelet/config/v1beta1"
)

const (
	apiVersion = "kubelet.config.k8s.io/v1beta1"
	// mostSecrets in a record that are noted only because a pod showed one that is as good as one
	// of them.
	mostSecrets = 100
)

// Records of the images that were pulled. Its methods may be called concurrently.
type Records struct {
	policy          Policy
	pulling, pulled string // folders

	mu sync.Mutex
	// intents are pulls under way, by image.
	intents map[string]int
}

// Open the records below a folder. Present are the names (tags and digests) and the reference of
// each image that the node has: a pull that was cut off by a kill may be done, so that its image is
// one of which nobody knows who may use it.
func Open(dir string, policy Policy, present map[string]string) (*Records, error) {
	r := &Records{
		policy: policy, pulling: filepath.Join(dir, "image_manager", "pulling"), pulled: filepath.Join(dir, "image_manager", "pulled"),
		intents: map[string]int{},
	}
	for _, folder := range []string{r.pulling, r.pulled} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return nil, err
		}
	}
	entries, err := os.ReadDir(r.pulling)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		path := filepath.Join(r.pulling, entry.Name())
		var intent config.ImagePullIntent
		if err := readFile(path, &intent); err != nil {
			klog.InfoS("Cannot read a record of a pull that was cut off", "file", path, "err", err)
			continue
		}
		ref, there := present[normal(intent.Image)]
		if !there {
			continue // it stays as a mark: what it names was not preloaded
		}
		if err := r.note(intent.Image, ref, nil); err != nil {
			return nil, err
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// normal is an image as the runtime names it.
func normal(image string) string {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return image
	}
	return named.String()
}

// Secret as it is recorded, with the hash of what is shown to the registry.
func Secret(uid, namespace, name string, login any) config.ImagePullSecret {
	out := config.ImagePullSecret{UID: uid, Namespace: namespace, Name: name}
	if text, err := json.Marshal(login); err == nil {
		out.CredentialHash = fmt.Sprintf("%x", sha256.Sum256(text))
	}
	return out
}

// Begin notes that an image is about to be pulled. Without that note the image would count as
// preloaded if the agent were killed.
func (r *Records) Begin(image string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	intent := config.ImagePullIntent{TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: "ImagePullIntent"}, Image: image}
	if err := writeFile(r.intentFile(image), intent); err != nil {
		return fmt.Errorf("failed to record image pull intent: %w", err)
	}
	r.intents[image]++
	return nil
}

// Failed: the image was not pulled.
func (r *Records) Failed(image string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended(image)
}

// Done: the image was pulled, as this reference, with this secret; nil: with credentials of the
// node, or with none.
func (r *Records) Done(image, ref string, secret *config.ImagePullSecret) {
	r.mu.Lock()
	defer r.mu.Unlock()
	credentials := &config.ImagePullCredentials{NodePodsAccessible: secret == nil}
	if secret != nil {
		credentials.KubernetesSecrets = []config.ImagePullSecret{*secret}
	}
	if err := r.note(image, ref, credentials); err != nil {
		klog.ErrorS(err, "Cannot record whose credentials an image was pulled with; pods will have to pull it again", "image", image)
		return // the intent stays: the image is not preloaded
	}
	r.ended(image)
}

func (r *Records) ended(image string) {
	if r.intents[image]--; r.intents[image] > 0 {
		return
	}
	delete(r.intents, image)
	if err := os.Remove(r.intentFile(image)); err != nil && !errors.Is(err, os.ErrNotExist) {
		klog.ErrorS(err, "Cannot remove the record of a pull that is over", "image", image)
	}
}

// MayUse says whether a pod that can show these secrets may use an image that the node has under
// this reference.
func (r *Records) MayUse(image, ref string, secrets func() ([]config.ImagePullSecret, error)) (bool, error) {
	r.mu.Lock()
	record, err := r.record(ref)
	_, statErr := os.Stat(r.intentFile(image))
	r.mu.Unlock()
	if err != nil {
		klog.InfoS("Cannot read whose credentials an image was pulled with; it is pulled again", "image", image, "err", err)
		return false, nil
	}
	if !r.policy.verifies(image, record != nil || !errors.Is(statErr, os.ErrNotExist)) {
		return true, nil
	}
	name, err := trimmed(image)
	if record == nil || err != nil {
		return false, nil
	}
	known, has := record.CredentialMapping[name]
	if !has {
		return false, nil
	}
	if known.NodePodsAccessible {
		return true, nil
	}
	shown, err := secrets()
	if err != nil {
		return false, err
	}
	return r.shows(image, ref, known, shown), nil
}

// shows: one of the secrets is one that the image was pulled with, by what it says or by what it
// is.
func (r *Records) shows(image, ref string, known config.ImagePullCredentials, shown []config.ImagePullSecret) bool {
	for _, secret := range shown {
		for _, before := range known.KubernetesSecrets {
			same := before.CredentialHash != "" && secret.CredentialHash == before.CredentialHash
			itself := secret.UID == before.UID && secret.Namespace == before.Namespace && secret.Name == before.Name
			if !same && !itself {
				continue
			}
			if same != itself && len(known.KubernetesSecrets) < mostSecrets {
				r.mu.Lock()
				err := r.note(image, ref, &config.ImagePullCredentials{KubernetesSecrets: []config.ImagePullSecret{secret}})
				r.mu.Unlock()
				if err != nil {
					klog.ErrorS(err, "Cannot record that a secret is good for an image", "image", image)
				}
			}
			return true
		}
	}
	return false
}

// note credentials for an image in its record; nil: whose it is, is unknown.
func (r *Records) note(image, ref string, credentials *config.ImagePullCredentials) error {
	name, err := trimmed(image)
	if err != nil {
		return fmt.Errorf("invalid image name %q: %w", image, err)
	}
	record, err := r.record(ref)
	if err != nil || record == nil {
		record = &config.ImagePulledRecord{ImageRef: ref}
	}
	if credentials != nil {
		if record.CredentialMapping == nil {
			record.CredentialMapping = map[string]config.ImagePullCredentials{}
		}
		record.CredentialMapping[name] = merged(record.CredentialMapping[name], *credentials)
	}
	record.TypeMeta = metav1.TypeMeta{APIVersion: apiVersion, Kind: "ImagePulledRecord"}
	record.LastUpdatedTime = metav1.NewTime(time.Now())
	return writeFile(r.recordFile(ref), record)
}

// merged credentials: what the whole node may use needs no secrets any more; a secret that has
// changed takes the place of itself.
func merged(have, more config.ImagePullCredentials) config.ImagePullCredentials {
	if have.NodePodsAccessible || more.NodePodsAccessible {
		return config.ImagePullCredentials{NodePodsAccessible: true}
	}
	for _, secret := range more.KubernetesSecrets {
		have.KubernetesSecrets = slices.DeleteFunc(have.KubernetesSecrets, func(s config.ImagePullSecret) bool {
			return s.UID == secret.UID && s.Namespace == secret.Namespace && s.Name == secret.Name
		})
		have.KubernetesSecrets = append(have.KubernetesSecrets, secret)
	}
	return have
}

// Prune the records of images that the node has no more. Present are the references of those it had
// at a time.
func (r *Records) Prune(present map[string]bool, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	entries, err := os.ReadDir(r.pulled)
	if err != nil {
		return
	}
	for _, entry := range entries {
		path := filepath.Join(r.pulled, entry.Name())
		var record config.ImagePulledRecord
		if strings.HasPrefix(entry.Name(), ".") || readFile(path, &record) != nil {
			continue
		}
		// Times in records are cut off to seconds.
		if !present[record.ImageRef] && record.LastUpdatedTime.Add(time.Second).Before(at) {
			if err := os.Remove(path); err != nil {
				klog.ErrorS(err, "Cannot remove the record of an image that is gone", "image", record.ImageRef)
			}
		}
	}
}

// record of an image; nil: there is none.
func (r *Records) record(ref string) (*config.ImagePulledRecord, error) {
	var record config.ImagePulledRecord
	err := readFile(r.recordFile(ref), &record)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err == nil && record.ImageRef != ref {
		err = fmt.Errorf("a record of %q, not of %q", record.ImageRef, ref)
	}
	if err != nil {
		return nil, err
	}
	return &record, nil
}

func (r *Records) intentFile(image string) string { return filepath.Join(r.pulling, hashed(image)) }
func (r *Records) recordFile(ref string) string   { return filepath.Join(r.pulled, hashed(ref)) }

// hashed is the kubelet's name for a file about something with any name.
func hashed(name string) string { return fmt.Sprintf("sha256-%x", sha256.Sum256([]byte(name))) }

func readFile(path string, into any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

// writeFile all at once: a kill leaves the old one or the new one.
func writeFile(path string, what any) error {
	text, err := json.Marshal(what)
	if err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	_, err = file.Write(text)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}
