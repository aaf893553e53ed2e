#!/bin/sh
# Installs the `linkerd` command for the user who runs this: the program becomes
# $INSTALLROOT/bin/linkerd-VERSION, and `linkerd` beside it a link to it, so that versions can stand
# side by side. Apart from what the build fetches and makes, nothing is downloaded, and nothing outside
# INSTALLROOT is touched.
#
#   ./install.sh              builds the command from this tree, and installs it
#   ./install.sh FILE         installs a built program, or the one in a .tar.gz archive
#
# INSTALLROOT      where to install (default: $HOME/.linkerd2)
# LINKERD2_VERSION refuse to install any other version than this one

set -eu

die() {
  printf 'install.sh: %s\n' "$1" >&2
  exit 1
}

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
root=${INSTALLROOT:-${HOME:?HOME is not set; say where to install with INSTALLROOT}/.linkerd2}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

case $# in
  0)
    command -v cargo >/dev/null 2>&1 || die 'cargo is not installed; give a built program: ./install.sh FILE'
    printf 'Building linkerd from %s...\n' "$here"
    # The Gateway API's definitions come as a Go module; without Go the program can do all but install them.
    if command -v go >/dev/null 2>&1; then
      (cd "$here" && cargo xtask charts)
    else
      printf 'Go is not installed: this linkerd will not carry the Gateway API.\n'
    fi
    target=${CARGO_TARGET_DIR:-$here/target}
    case $target in /*) ;; *) target=$PWD/$target ;; esac
    # From inside the tree, whose .cargo/config.toml has a say.
    (cd "$here" && CARGO_TARGET_DIR=$target \
      cargo build --locked --profile control --package linkerd-cli --bin linkerd)
    program=$target/control/linkerd
    ;;
  1)
    program=$1
    [ -f "$program" ] || die "there is no file $program"
    case $program in
      *.tar.gz | *.tgz)
        tar -xzf "$program" -C "$scratch"
        program=$(find "$scratch" -type f \( -name linkerd -o -name 'linkerd2-cli-*' \) | head -n 1)
        [ -n "$program" ] || die "$1 holds no file linkerd or linkerd2-cli-*"
        chmod 0755 "$program"
        ;;
    esac
    ;;
  *) die 'usage: ./install.sh [FILE]' ;;
esac

version=$("$program" version --client --short) || die "$program does not run on this machine"
if [ -n "${LINKERD2_VERSION:-}" ] && [ "$LINKERD2_VERSION" != "$version" ]; then
  die "$program is $version, and LINKERD2_VERSION asks for $LINKERD2_VERSION"
fi

mkdir -p "$root/bin"
# A program that runs cannot be overwritten, but its name can be given to another file.
cp "$program" "$root/bin/.linkerd-$version.$$"
chmod 0755 "$root/bin/.linkerd-$version.$$"
mv -f "$root/bin/.linkerd-$version.$$" "$root/bin/linkerd-$version"
ln -sf "linkerd-$version" "$root/bin/linkerd"

printf 'Linkerd %s was successfully installed as %s/bin/linkerd-%s\n\n' "$version" "$root" "$version"
printf 'Add the linkerd command to your path with:\n\n  export PATH=$PATH:%s/bin\n\n' "$root"
printf 'Now run:\n\n'
printf '  # the Gateway API, unless the cluster has it\n'
printf '  kubectl apply --server-side -f https://github.com/kubernetes-sigs/gateway-api/releases/download/v1.4.0/standard-install.yaml\n\n'
printf '  linkerd check --pre                         # is the cluster ready?\n'
printf '  linkerd install --crds | kubectl apply -f - # the custom resources\n'
printf '  linkerd install | kubectl apply -f -        # the control plane\n'
printf '  linkerd check                               # does it work?\n'
