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

	"github.com/berth-k8s/berth/internal/durable"
)

const (
	apiVersion = "kubelet.config.k8s.io/v1beta1"
	// mostSecrets is the size of a record from which on no secret is added just because it has the
	// identity or the content of a recorded one.
	mostSecrets = 100
)

// Records are those of the images that were pulled. Its methods may be called concurrently.
type Records struct {
	policy          Policy
	pulling, pulled string // folders

	mu sync.Mutex
	// intents are the pulls of each image that are not over. As long as there is one, the image has
	// a file in pulling, and does not count as preloaded.
	intents map[string]intent
}

// intent is about one image.
type intent struct {
	running int // pulls in progress
	// unrecorded: one may have completed, and what it pulled has no record. Only a later pull that
	// is recorded makes up for it.
	unrecorded bool
}

// Open opens the records in a folder. present has the names (tags and digests) and the reference of
// each image on the node. A pull that was interrupted by a kill may have completed; no one is known
// to have access to its image then.
func Open(dir string, policy Policy, present map[string]string) (*Records, error) {
	r := &Records{
		policy: policy, pulling: filepath.Join(dir, "image_manager", "pulling"), pulled: filepath.Join(dir, "image_manager", "pulled"),
		intents: map[string]intent{},
	}
	for _, folder := range []string{r.pulling, r.pulled} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return nil, err
		}
	}
	r.removeUnfinished()
	entries, err := os.ReadDir(r.pulling)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		path := filepath.Join(r.pulling, entry.Name())
		var pull config.ImagePullIntent
		if err := readFile(path, &pull); err != nil {
			klog.InfoS("Cannot read a record of a pull that was cut off", "file", path, "err", err)
			continue
		}
		ref, there := present[normal(pull.Image)]
		if !there {
			r.intents[pull.Image] = intent{unrecorded: true} // the runtime may complete it yet
			continue
		}
		if err := r.note(pull.Image, ref, nil); err != nil {
			return nil, err
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// removeUnfinished removes files that a kill has left before they got their names.
func (r *Records) removeUnfinished() {
	for _, folder := range []string{r.pulling, r.pulled} {
		entries, _ := os.ReadDir(folder)
		for _, entry := range entries {
			if strings.HasPrefix(entry.Name(), durable.Unfinished) {
				_ = os.Remove(filepath.Join(folder, entry.Name()))
			}
		}
	}
}

// normal is an image as the runtime names it.
func normal(image string) string {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return image
	}
	return named.String()
}

// Secret returns a secret as recorded, with the hash of what is sent to the registry.
func Secret(uid, namespace, name string, login any) config.ImagePullSecret {
	out := config.ImagePullSecret{UID: uid, Namespace: namespace, Name: name}
	if text, err := json.Marshal(login); err == nil {
		out.CredentialHash = fmt.Sprintf("%x", sha256.Sum256(text))
	}
	return out
}

// Begin records that an image is about to be pulled. Otherwise the image would count as preloaded
// if the agent were killed. Failed, Unknown or Done ends it.
func (r *Records) Begin(image string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	pull := config.ImagePullIntent{TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: "ImagePullIntent"}, Image: image}
	if err := writeFile(r.intentFile(image), pull); err != nil {
		return fmt.Errorf("failed to record image pull intent: %w", err)
	}
	now := r.intents[image]
	now.running++
	r.intents[image] = now
	return nil
}

// Failed records that the image was not pulled.
func (r *Records) Failed(image string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended(image, r.intents[image].unrecorded)
}

// Unknown records that the image may have been pulled, and that nothing more is known of it.
func (r *Records) Unknown(image string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended(image, true)
}

// Done records that the image was pulled, as this reference, with this secret; nil: with the node's
// credentials, or with none.
func (r *Records) Done(image, ref string, secret *config.ImagePullSecret) {
	r.mu.Lock()
	defer r.mu.Unlock()
	credentials := &config.ImagePullCredentials{NodePodsAccessible: secret == nil}
	if secret != nil {
		credentials.KubernetesSecrets = []config.ImagePullSecret{*secret}
	}
	err := r.note(image, ref, credentials)
	if err != nil {
		klog.ErrorS(err, "Cannot record whose credentials an image was pulled with; pods will have to pull it again", "image", image)
	}
	r.ended(image, err != nil)
}

// ended ends one pull of the image.
func (r *Records) ended(image string, unrecorded bool) {
	now := intent{max(r.intents[image].running-1, 0), unrecorded}
	if now.running > 0 || now.unrecorded {
		r.intents[image] = now
		return
	}
	delete(r.intents, image)
	if err := os.Remove(r.intentFile(image)); err != nil && !errors.Is(err, os.ErrNotExist) {
		klog.ErrorS(err, "Cannot remove the record of a pull that is over", "image", image)
	}
}

// MayUse reports whether a pod with these secrets may use an image that the node has under this
// reference.
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

// shows reports whether the image was pulled with one of the secrets, by content or by identity.
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

// note adds credentials to an image's record; nil: unknown ones.
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

// merged merges credentials. An image that the whole node may use needs no secrets; a secret that
// has changed replaces its old version.
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

// Prune removes the records of images that are no longer on the node. present are the references of
// the images that were there at the given time.
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
		// Times in records are truncated to seconds.
		if !present[record.ImageRef] && record.LastUpdatedTime.Add(time.Second).Before(at) {
			if err := os.Remove(path); err != nil {
				klog.ErrorS(err, "Cannot remove the record of an image that is gone", "image", record.ImageRef)
			}
		}
	}
}

// record reads the record of an image; nil: there is none.
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

// hashed is the name of the file about an image, as the kubelet derives it.
func hashed(name string) string { return fmt.Sprintf("sha256-%x", sha256.Sum256([]byte(name))) }

func readFile(path string, into any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

// writeFile writes a file atomically: after a kill it is the old one or the new one.
func writeFile(path string, what any) error {
	text, err := json.Marshal(what)
	if err != nil {
		return err
	}
	return durable.Replace(path, text, 0o600)
}
