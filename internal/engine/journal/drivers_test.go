package journal

import (
	"encoding/json"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestWhatDriversReadIsHashed: annotations of kinds that the scheduler does not write, and what is
// handed to drivers of volumes, are hashes in a journal. An object may be stripped twice, and is
// not changed.
func TestWhatDriversReadIsHashed(t *testing.T) {
	secret := map[string]string{"key": "s3cret"}
	meta := metav1.ObjectMeta{Name: "o", Annotations: secret}
	for _, o := range []metav1.Object{
		&v1.Node{ObjectMeta: meta}, &v1.Service{ObjectMeta: meta}, &v1.Namespace{ObjectMeta: meta}, &v1.Pod{ObjectMeta: meta},
		&policyv1.PodDisruptionBudget{ObjectMeta: meta}, &appsv1.ReplicaSet{ObjectMeta: meta}, &resourcev1.ResourceSlice{ObjectMeta: meta},
		&storagev1.StorageClass{Parameters: secret},
		&v1.Pod{Spec: v1.PodSpec{Volumes: []v1.Volume{
			{VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{VolumeAttributes: secret}}},
			{VolumeSource: v1.VolumeSource{FlexVolume: &v1.FlexVolumeSource{Options: secret}}},
		}}},
	} {
		once := Stripped(o)
		text, err := json.Marshal(once)
		if err != nil || strings.Contains(string(text), "s3cret") || !strings.Contains(string(text), hashMark) {
			t.Errorf("%T: %s, %v", o, text, err)
		}
		again, _ := json.Marshal(Stripped(once))
		if string(again) != string(text) {
			t.Errorf("%T, stripped twice: %s, before %s", o, again, text)
		}
		if before, _ := json.Marshal(o); !strings.Contains(string(before), "s3cret") {
			t.Errorf("%T was changed", o)
		}
	}
}
