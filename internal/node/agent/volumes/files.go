package volumes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"github.com/berth-k8s/berth/internal/node/agent/env"
)

// filesOf returns the current files of a configMap, secret, downwardAPI or projected volume, by
// path.
func (m *Manager) filesOf(ctx context.Context, pod *v1.Pod, volume v1.Volume) (map[string]file, error) {
	switch kindOf(volume) {
	case configMap:
		source := volume.ConfigMap
		return m.configMapFiles(pod, source.Name, source.Items, modeOr(source.DefaultMode), is(source.Optional))
	case secret:
		source := volume.Secret
		return m.secretFiles(pod, source.SecretName, source.Items, modeOr(source.DefaultMode), is(source.Optional))
	case downwardAPI:
		return m.podFiles(pod, volume.DownwardAPI.Items, modeOr(volume.DownwardAPI.DefaultMode))
	}
	files := map[string]file{}
	var failed []error
	for _, source := range volume.Projected.Sources {
		some, err := m.projectedFiles(ctx, pod, source, modeOr(volume.Projected.DefaultMode))
		if err != nil {
			failed = append(failed, err)
		}
		maps.Copy(files, some)
	}
	if len(failed) > 0 {
		return nil, utilerrors.NewAggregate(failed)
	}
	return files, nil
}

// projectedFiles are those of one source of a projected volume.
func (m *Manager) projectedFiles(ctx context.Context, pod *v1.Pod, source v1.VolumeProjection, mode int32) (map[string]file, error) {
	switch {
	case source.Secret != nil:
		return m.secretFiles(pod, source.Secret.Name, source.Secret.Items, mode, is(source.Secret.Optional))
	case source.ConfigMap != nil:
		return m.configMapFiles(pod, source.ConfigMap.Name, source.ConfigMap.Items, mode, is(source.ConfigMap.Optional))
	case source.DownwardAPI != nil:
		return m.podFiles(pod, source.DownwardAPI.Items, mode)
	case source.ServiceAccountToken != nil:
		return m.tokenFile(ctx, pod, source.ServiceAccountToken, mode)
	case source.ClusterTrustBundle != nil:
		return nil, errors.New("this node's agent does not project clusterTrustBundle")
	case source.PodCertificate != nil:
		return nil, errors.New("this node's agent does not project podCertificate")
	}
	return nil, nil
}

func (m *Manager) configMapFiles(pod *v1.Pod, name string, items []v1.KeyToPath, mode int32, optional bool) (map[string]file, error) {
	object, err := m.options.Objects.ConfigMap(pod.Namespace, name)
	if err != nil {
		if !optional || !apierrors.IsNotFound(err) {
			return nil, err
		}
		object = &v1.ConfigMap{}
	}
	content := make(map[string][]byte, len(object.Data)+len(object.BinaryData))
	for key, value := range object.Data {
		content[key] = []byte(value)
	}
	maps.Copy(content, object.BinaryData)
	return chosen(content, items, mode, optional, "configmap references non-existent config key")
}

func (m *Manager) secretFiles(pod *v1.Pod, name string, items []v1.KeyToPath, mode int32, optional bool) (map[string]file, error) {
	object, err := m.options.Objects.Secret(pod.Namespace, name)
	if err != nil {
		if !optional || !apierrors.IsNotFound(err) {
			return nil, err
		}
		object = &v1.Secret{}
	}
	return chosen(object.Data, items, mode, optional, "references non-existent secret key")
}

// chosen returns the keys that items select, at their paths; without items, all keys under their
// own names.
func chosen(content map[string][]byte, items []v1.KeyToPath, mode int32, optional bool, missing string) (map[string]file, error) {
	files := map[string]file{}
	if len(items) == 0 {
		for key, data := range content {
			files[key] = file{data: data, mode: mode}
		}
		return files, nil
	}
	for _, item := range items {
		data, ok := content[item.Key]
		switch {
		case ok:
			files[item.Path] = file{data: data, mode: itemMode(item.Mode, mode)}
		case !optional:
			return nil, fmt.Errorf("%s: %s", missing, item.Key)
		}
	}
	return files, nil
}

// podFiles are what the downward API shows of the pod.
func (m *Manager) podFiles(pod *v1.Pod, items []v1.DownwardAPIVolumeFile, mode int32) (map[string]file, error) {
	files := map[string]file{}
	var failed []error
	for _, item := range items {
		var value string
		var err error
		switch {
		case item.FieldRef != nil:
			value, err = env.MetadataField(pod, item.FieldRef.FieldPath)
		case item.ResourceFieldRef != nil:
			value, err = env.ResourceField(pod, item.ResourceFieldRef.ContainerName, item.ResourceFieldRef, m.options.Allocatable())
		}
		if err != nil {
			failed = append(failed, err)
		}
		files[filepath.Clean(item.Path)] = file{data: []byte(value), mode: itemMode(item.Mode, mode)}
	}
	return files, utilerrors.NewAggregate(failed)
}

// tokenFile is a token of the pod's service account that is valid only as long as the pod exists.
func (m *Manager) tokenFile(ctx context.Context, pod *v1.Pod, source *v1.ServiceAccountTokenProjection, mode int32) (map[string]file, error) {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: source.ExpirationSeconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	if source.Audience != "" {
		request.Spec.Audiences = []string{source.Audience}
	}
	token, err := m.tokens.get(ctx, pod.Namespace, pod.Spec.ServiceAccountName, request)
	if err != nil {
		return nil, err
	}
	user := userOf(pod)
	if user != nil || groupOf(pod) != nil {
		mode = 0o600 // for the user alone; giveToGroup adds the group
	}
	return map[string]file{source.Path: {data: []byte(token.Status.Token), mode: mode, user: user}}, nil
}

// modeOr returns the mode or, for a pod that did not come through the API, the API's default.
func modeOr(mode *int32) int32 {
	if mode == nil {
		return 0o644
	}
	return *mode
}

func itemMode(own *int32, mode int32) int32 {
	if own != nil {
		return *own
	}
	return mode
}

func is(flag *bool) bool { return flag != nil && *flag }
