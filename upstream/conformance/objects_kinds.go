package conformance

import (
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func resourceClaims(w *World) (list []runtime.Object) {
	for _, claim := range ofKind[*resourcev1.ResourceClaim](w) {
		list = append(list, claim)
	}
	return list
}
