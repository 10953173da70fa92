#!/usr/bin/env bash
# Installs Berth into the cluster of the current kubeconfig from the reader's own image, or removes it. The kustomization stays in
# dist/deploy, for changes and for the way back.
# usage: IMG=REGISTRY/berth:TAG [OVERLAY=second-scheduler] [COMPONENTS='webhook ui'] hack/deploy.sh apply
#        hack/deploy.sh delete
set -euo pipefail
cd "$(dirname "$0")/.."
read -ra kubectl <<<"${KUBECTL:-kubectl}"
folder=dist/deploy

case ${1-} in
delete)
	[ -e $folder/kustomization.yaml ] || { echo "make undeploy: there is no $folder, which make deploy writes" >&2; exit 2; }
	"${kubectl[@]}" delete -k $folder --ignore-not-found --wait
	exit ;;
apply) ;;
*) sed -n 's/^# usage: //p' "$0" >&2; exit 2 ;;
esac

: "${OVERLAY:=second-scheduler}" "${COMPONENTS:=}"
case ${IMG-} in
*@*) image="newName: \"${IMG%%@*}\", digest: \"${IMG#*@}\"" ;;
*:*) image="newName: \"${IMG%:*}\", newTag: \"${IMG##*:}\"" ;;
*) echo "make deploy: name the image that your nodes can pull: IMG=REGISTRY/berth:TAG" >&2; exit 2 ;;
esac
[ -d "deploy/kustomize/overlays/$OVERLAY" ] || { echo "make deploy: OVERLAY=$OVERLAY: there are $(ls -m deploy/kustomize/overlays)" >&2; exit 2; }
mkdir -p $folder
{
	echo "# Written by make deploy."
	echo "apiVersion: kustomize.config.k8s.io/v1beta1"
	echo "kind: Kustomization"
	echo "resources: [../../deploy/kustomize/overlays/$OVERLAY]"
	echo "components:${COMPONENTS:+ }"
	for component in $COMPONENTS; do
		parent=deploy/kustomize/components
		[ ! -d "integrations/deploy/$component" ] || parent=integrations/deploy
		echo "- ../../$parent/$component"
	done
	echo "images:"
	echo "- {name: registry.example.com/berth, $image}"
} >$folder/kustomization.yaml
"${kubectl[@]}" apply -k $folder
"${kubectl[@]}" rollout status deployment --namespace berth-system --selector app.kubernetes.io/part-of=berth --timeout=3m
