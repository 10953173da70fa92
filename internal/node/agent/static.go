package agent

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/node/agent/validation"
)

func nameOf(pod *v1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

// staticPods runs the pods in the folder.
func (a *Agent) staticPods(ctx context.Context) {
	complained := map[string]string{}
	ticker := time.NewTicker(a.config.FileCheck)
	defer ticker.Stop()
	for {
		wanted, err := a.readStatic(complained)
		if err == nil {
			a.runStatic(ctx, wanted)
			a.filesKnown.Store(true)
			a.allListed()
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// mirrorsEvery is how often it is checked that every static pod has its mirror.
const mirrorsEvery = time.Second

// showStatic shows the static pods in the API by mirror pods. An API server that does not answer
// holds up this only, not the static pods.
func (a *Agent) showStatic(ctx context.Context) {
	complained := map[string]string{}
	ticker := time.NewTicker(mirrorsEvery)
	defer ticker.Stop()
	for {
		if a.listed.Load() {
			a.keepMirrors(ctx, complained)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// readStatic reads the folder, or the one file. If the folder cannot be read, its pods keep
// running. Of several files with a pod of one name the last one counts, as with the kubelet.
func (a *Agent) readStatic(complained map[string]string) (map[types.UID]*v1.Pod, error) {
	out := map[types.UID]*v1.Pod{}
	if a.config.StaticPodPath == "" {
		return out, nil
	}
	paths := []string{a.config.StaticPodPath}
	info, err := os.Stat(a.config.StaticPodPath)
	if err == nil && info.IsDir() {
		paths, err = filesIn(a.config.StaticPodPath)
	}
	if os.IsNotExist(err) {
		return out, nil
	}
	if err != nil {
		klog.ErrorS(err, "Cannot read the folder of static pods", "path", a.config.StaticPodPath)
		return nil, err
	}
	from := map[types.NamespacedName]string{}
	for _, path := range slices.Backward(paths) {
		pod, err := readPod(path, a.config.NodeName)
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			a.refuseStatic(complained, path, err)
			// The previous pod keeps running until the file is valid again, or is gone.
			for _, w := range a.pods.all() {
				if pod := w.object(); w.static && pod.Annotations[annotationFile] == path && from[nameOf(pod)] == "" {
					out[w.uid] = pod
					from[nameOf(pod)] = path
				}
			}
			continue
		}
		if other := from[nameOf(pod)]; other != "" {
			a.refuseStatic(complained, path, fmt.Errorf("%s: pod %s is that of %s, too, which comes later", path, klog.KObj(pod), other))
			continue
		}
		delete(complained, path)
		out[pod.UID] = pod
		from[nameOf(pod)] = path
	}
	return out, nil
}

// refuseStatic reports why a file is not run, once.
func (a *Agent) refuseStatic(complained map[string]string, path string, err error) {
	if complained[path] == err.Error() {
		return
	}
	complained[path] = err.Error()
	klog.ErrorS(err, "Cannot run a static pod")
	a.eventAboutNode(v1.EventTypeWarning, "FailedValidation", "Static pod refused: "+err.Error())
}

// annotationFile is the file that a static pod comes from. It is never written to the API.
const annotationFile = "berth.dev/file"

func filesIn(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") && !e.IsDir() {
			out = append(out, filepath.Join(dir, e.Name()))
		}
	}
	return out, nil
}

// maxPodFile is the largest file of a static pod that is read, as by the kubelet.
const maxPodFile = 10 << 20

// readFile reads a file that is not too large. Anything else, a pipe among them, is not touched.
func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s: not a file", path)
	case info.Size() > maxPodFile:
		return nil, fmt.Errorf("%s: larger than %d MiB", path, maxPodFile>>20)
	}
	return os.ReadFile(path)
}

// readPod reads the pod in a file, with the API's defaults.
func readPod(path, node string) (*v1.Pod, error) {
	text, err := readFile(path)
	if err != nil {
		return nil, err
	}
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(text, &kind); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if kind.Kind != "Pod" || kind.APIVersion != "v1" {
		return nil, fmt.Errorf("%s: kind %q of %q: must be Pod of v1", path, kind.Kind, kind.APIVersion)
	}
	pod := &v1.Pod{}
	if err := yaml.UnmarshalStrict(text, pod); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if pod.Name == "" {
		return nil, fmt.Errorf("%s: metadata.name: must be set", path)
	}
	if pod.UID == "" {
		described, err := json.Marshal(pod)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		h := fnv.New128a()
		h.Write(described)
		fmt.Fprintf(h, "host:%s file:%s", node, path)
		pod.UID = types.UID(hex.EncodeToString(h.Sum(nil)))
	}
	pod.Name += "-" + strings.ToLower(node)
	if pod.Namespace == "" {
		pod.Namespace = metav1.NamespaceDefault
	}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[annotationConfigHash] = string(pod.UID)
	pod.Annotations[annotationConfigSource] = sourceFile
	delete(pod.Annotations, v1.MirrorPodAnnotationKey) // only mirrors have it
	pod.Annotations[annotationFile] = path
	admission.Default(pod)
	if grace := pod.Spec.TerminationGracePeriodSeconds; grace != nil && *grace < 0 {
		*grace = 1 // as the API server does
	}
	pod.Spec.NodeName = node
	pod.Spec.Tolerations = append(pod.Spec.Tolerations, v1.Toleration{Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute})
	pod.Status = v1.PodStatus{Phase: v1.PodPending}
	if errs := validation.Pod(pod); len(errs) > 0 {
		return nil, fmt.Errorf("%s: %w", path, errs.ToAggregate())
	}
	if what := refersToAPI(pod); what != "" {
		return nil, fmt.Errorf("%s: static pods may not reference %s", path, what)
	}
	return pod, nil
}

// refersToAPI returns what the pod needs of the API: a pod that runs without the API cannot depend
// on it.
func refersToAPI(pod *v1.Pod) string {
	switch {
	case pod.Spec.ServiceAccountName != "":
		return "serviceaccounts"
	case len(pod.Spec.ImagePullSecrets) > 0:
		return "secrets"
	case len(pod.Spec.ResourceClaims) > 0:
		return "resourceclaims"
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, from := range c.EnvFrom {
			if what := ofTheAPI(from.SecretRef != nil, from.ConfigMapRef != nil); what != "" {
				return what
			}
		}
		for _, e := range c.Env {
			if from := e.ValueFrom; from != nil {
				if what := ofTheAPI(from.SecretKeyRef != nil, from.ConfigMapKeyRef != nil); what != "" {
					return what
				}
			}
		}
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if what := ofTheAPI(v.Secret != nil, v.ConfigMap != nil); what != "" {
			return what
		}
		if v.PersistentVolumeClaim != nil || v.Ephemeral != nil {
			return "persistentvolumeclaims"
		}
		if v.CSI != nil {
			return "csidrivers"
		}
		if v.Projected == nil {
			continue
		}
		for _, from := range v.Projected.Sources {
			switch what := ofTheAPI(from.Secret != nil, from.ConfigMap != nil); {
			case what != "":
				return what
			case from.ServiceAccountToken != nil:
				return "serviceaccounts"
			case from.ClusterTrustBundle != nil:
				return "clustertrustbundles"
			case from.PodCertificate != nil:
				return "podcertificates"
			}
		}
	}
	return ""
}

func ofTheAPI(secret, configMap bool) string {
	switch {
	case secret:
		return "secrets"
	case configMap:
		return "configmaps"
	}
	return ""
}

// runStatic starts workers for new static pods, and ends those whose files are gone. A pod whose
// file has changed is a different pod, which starts when the previous one has ended, unless the
// file gives it a UID of its own, which is the same.
func (a *Agent) runStatic(ctx context.Context, wanted map[types.UID]*v1.Pod) {
	busy := map[types.NamespacedName]bool{}
	for _, w := range a.pods.all() {
		if !w.static {
			continue
		}
		pod := w.object()
		busy[nameOf(pod)] = true
		w.mu.Lock()
		gone := w.gone
		w.mu.Unlock()
		if wanted[w.uid] == nil && !gone {
			w.end()
		}
	}
	for uid, pod := range wanted {
		if w := a.pods.get(uid); w != nil {
			w.edited(pod)
			continue
		}
		if busy[nameOf(pod)] {
			continue
		}
		busy[nameOf(pod)] = true
		pod.Annotations[annotationConfigSeen] = firstSeen(time.Now())
		klog.InfoS("Running a static pod", "pod", klog.KObj(pod), "file", pod.Annotations[annotationFile])
		w := a.newWorker(pod, true)
		w.takenUp = !a.filesKnown.Load()
		a.pods.start(ctx, w)
	}
}

// edited records what the file of a static pod says now, if it has changed: only a file that says
// which UID its pod has can do that without another pod being meant.
func (w *worker) edited(pod *v1.Pod) {
	w.mu.Lock()
	own := *w.pod
	own.Labels, own.Annotations, own.Spec = pod.Labels, maps.Clone(pod.Annotations), pod.Spec
	own.Annotations[annotationConfigSeen] = w.pod.Annotations[annotationConfigSeen]
	next := w.allocation.applied(&own)
	same := apiequality.Semantic.DeepEqual([]any{next.Labels, next.Annotations, next.Spec}, []any{w.pod.Labels, w.pod.Annotations, w.pod.Spec})
	if same || w.gone || !w.static {
		w.mu.Unlock()
		return
	}
	w.pod = next
	w.mu.Unlock()
	klog.InfoS("A static pod has changed", "pod", klog.KObj(next), "file", next.Annotations[annotationFile])
	w.agent.volumes.Update(next)
	w.wake()
}

func (a *Agent) mirrorSeen(pod *v1.Pod) {
	a.mirrors.seen(pod)
	if w := a.pods.get(types.UID(pod.Annotations[v1.MirrorPodAnnotationKey])); w != nil {
		a.statuses.again(w)
	}
}

// keepMirrors creates missing mirror pods, and deletes those without a static pod.
func (a *Agent) keepMirrors(ctx context.Context, complained map[string]string) {
	shown := map[types.NamespacedName]bool{}
	for _, w := range a.pods.all() {
		w.mu.Lock()
		pod, live := w.pod, w.static && !w.gone
		w.mu.Unlock()
		if !live {
			continue
		}
		shown[nameOf(pod)] = true
		if a.mirrors.of(pod) != nil {
			continue
		}
		if err := a.mirrors.create(ctx, pod); err != nil && complained[pod.Name] != err.Error() {
			complained[pod.Name] = err.Error()
			klog.InfoS("Cannot show a static pod in the API; it runs, and this is tried again", "pod", klog.KObj(pod), "err", err)
		} else if err == nil {
			delete(complained, pod.Name)
			a.statuses.renew(w)
		}
	}
	for _, m := range a.mirrors.all() {
		if !shown[nameOf(m)] {
			a.mirrors.remove(ctx, m)
		}
	}
}
