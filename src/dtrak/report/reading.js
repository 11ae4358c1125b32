// On a small screen the pictures come first: how to read a score is folded.
if (matchMedia("(max-width: 60rem)").matches) document.querySelector(".reading details").open = false;
